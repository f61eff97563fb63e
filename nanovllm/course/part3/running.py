"""The last check of most exercises of part 3: the running engine, with the learner's functions in all of its layers."""

from dataclasses import replace

from nanovllm.course.numeric.checkpoint import engine_example

IN_ENGINE = replace(
    engine_example(),
    think="The small cases agree and the engine's answers do not. What reaches your functions there that the small "
    "cases do not have? Print shapes and dtypes.",
)
