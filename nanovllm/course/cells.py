"""Cells to paste: what a check did, as Python that does it again with the learner's file."""

import re
import textwrap
from typing import Any

from nanovllm.course.exercise import Example, Exercise, Numeric
from nanovllm.course.oracle import Trace, render_cell

_IMPORTS = {
    "SamplingParams": "from nanovllm.sampling_params import SamplingParams",
    "BlockManager": "nanovllm.scheduler",
    "Scheduler": "nanovllm.scheduler",
    "Sequence": "nanovllm.scheduler",
    "block_manager": "nanovllm.scheduler",
}


def names_for_examples() -> dict[str, Any]:
    """What the code of an example may use."""
    from nanovllm.sampling_params import SamplingParams
    from nanovllm.scheduler import BlockManager, Scheduler, Sequence, block_manager

    return {
        "SamplingParams": SamplingParams,
        "BlockManager": BlockManager,
        "Scheduler": Scheduler,
        "Sequence": Sequence,
        "block_manager": block_manager,
    }


def split_imports(code: str) -> tuple[list[str], str]:
    """The lines of imports at the top of a check's code, and the rest."""
    lines = code.splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith(("import ", "from "))), len(lines))
    return lines[:count], "\n".join(lines[count:])


def example_cell(exercise: Exercise, example: Example, impl: str) -> str:
    """The example in the running engine with the functions of `impl` swapped in."""
    imports, code = split_imports(example.code)
    brought = re.findall(r"\w+", " ".join(imports))
    used = [name for name in _IMPORTS if name not in brought and re.search(rf"(?<![.\w]){name}\b", code)]
    lines = ["from nanovllm.course import swap"]
    if "SamplingParams" in used:
        lines.append(_IMPORTS["SamplingParams"])
    from_scheduler = [name for name in used if name != "SamplingParams"]
    if from_scheduler:
        lines.append(f"from nanovllm.scheduler import {', '.join(from_scheduler)}")
    body = textwrap.indent(code, "    ")
    return "\n".join([*lines, *imports, "", f'with swap("{exercise.number}", {impl!r}):', body, "result"])


def numeric_cell(exercise: Exercise, numeric: Numeric, inputs: dict[str, Any], impl: str) -> str:
    """One random case, its inputs written out, with the functions of `impl` swapped in."""
    imports, code = split_imports(numeric.code)
    body = textwrap.indent(code, "    ")
    given = [f"{name} = {value!r}" for name, value in inputs.items()]
    head = ["from nanovllm.course import swap", *imports]
    return "\n".join([*head, "", *given, f'with swap("{exercise.number}", {impl!r}):', body, "result"])


def trace_cell(exercise: Exercise, trace: Trace, impl: str) -> str:
    """The trace, played with the functions of `impl` swapped in."""
    call = f'with swap("{exercise.number}", {impl!r}):\n    run_trace(trace)'
    return render_cell(trace, setup="from nanovllm.course import swap", call=call).rstrip()
