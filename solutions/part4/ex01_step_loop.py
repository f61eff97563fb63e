"""4.1 The step loop: schedule, run, book; and a loop around it.

A step is one pass of the model for some of the requests. The engine asks the scheduler who is in it, runs the model,
and books what came out. generate() takes steps until its own requests are finished. Example with two prompts of 3 and 2
tokens, max_tokens 2 for the first and 1 for the second:

    step 1   prefill of both, 5 tokens   a token for each; the second request is finished, and its output comes back
    step 2   decode of the first         its second token; finished
    generate returns [output of the first, output of the second]: in the order of the prompts, not of their ends

Whoever watches the engine is told how a step goes: engine._event(name) with "begin", "schedule", "run", "postprocess",
"end" as each begins.
"""

from collections.abc import Iterable, Sequence

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.engine.llm import LLM
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.outputs import RequestOutput, StepOutput
from nanovllm.engine.requests import Prompt, check_lists
from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import Schedule


def step(engine: LLMEngine) -> StepOutput:
    """One step. engine.check_open() comes first; it raises when the engine is closed.

    Tell "begin" and "schedule", then get a schedule from engine.policy(engine.scheduler) if engine.policy is not None,
    else from engine.scheduler.schedule(), and keep it in engine.last_schedule. Tell "run": a watcher may cancel
    requests just now, so go on with schedule.without_finished(), kept in engine.last_schedule too.
    engine._run(schedule) returns the sampled token ids. Tell "postprocess". engine.book(schedule, token_ids) returns
    the output of the step. Tell "end" and return the output.

    scheduler.schedule() has changed the scheduler's state. If anything from "run" to "postprocess" raises, whatever it
    is (a Ctrl-C too), call engine.scheduler.rollback(schedule) and let the exception go on.
    """
    # stub: raise ExerciseNotDone("4.1 step_loop", "write the lines of a step that goes well; then ask what may raise")
    # solution: begin
    engine.check_open()
    engine._event("begin")
    engine._event("schedule")
    schedule = engine.policy(engine.scheduler) if engine.policy else engine.scheduler.schedule()
    engine.last_schedule = schedule
    try:
        engine._event("run")
        schedule = engine.last_schedule = schedule.without_finished()
        token_ids = engine._run(schedule)
        engine._event("postprocess")
    except BaseException:  # KeyboardInterrupt is no Exception, and its requests must not be lost either
        engine.scheduler.rollback(schedule)
        raise
    # Booking stands outside: what has been booked cannot be rolled back.
    output = engine.book(schedule, token_ids)
    engine._event("end")
    return output
    # solution: end


def run(engine: LLMEngine, schedule: Schedule) -> list[int | None]:
    """The forward pass: a token id for each of schedule.seqs, None for one whose last known token was not in the step.

    seq.scheduled_slice() is what the step needs of a sequence; its `needs_token` is True when its last known token is
    in the step. SamplingInputs.of(seqs) says how to sample, for those sequences only that get a token.
    engine.ranks.run(slices, schedule.is_prefill, inputs, engine.scheduler.sequences) runs the model.
    A schedule without sequences runs nothing and returns [].
    """
    # stub: raise ExerciseNotDone("4.1 step_loop", "a chunk of a long prompt is run, but is a token sampled for it?")
    # solution: begin
    if not schedule.seqs:
        return []
    slices = [seq.scheduled_slice() for seq in schedule.seqs]
    sampled = [seq for seq, s in zip(schedule.seqs, slices, strict=True) if s.needs_token]
    return engine.ranks.run(slices, schedule.is_prefill, SamplingInputs.of(sampled), engine.scheduler.sequences)
    # solution: end


def generate(
    llm: LLM,
    prompts: Iterable[Prompt],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    use_tqdm: bool = True,
) -> list[RequestOutput]:
    """Complete every prompt; outputs in the order of the prompts. A progress bar (use_tqdm) may be left out.

    check_lists(prompts, sampling_params) returns two lists of the same length. llm.check_request(prompt, params)
    returns (token_ids, params), or raises RequestError; check all prompts before the first is queued.
    llm._enqueue(prompt, token_ids, params) queues one and returns its request id.

    Call llm.step() until every request of this call is finished. step().finished holds RequestOutputs; those of
    requests that somebody else queued go into the dict llm.uncollected, by request_id. They may be unfinished still
    when this call returns.
    If anything raises, llm.abort(request_id) the requests of this call, no others, and let the exception go on.
    """
    # stub: raise ExerciseNotDone("4.1 step_loop", "a dict from request id to output (None at first) does most of it")
    # solution: begin
    texts, params = check_lists(prompts, sampling_params)
    checked = [llm.check_request(prompt, p) for prompt, p in zip(texts, params, strict=True)]
    outputs: dict[int, RequestOutput | None] = {}
    try:
        for prompt, (token_ids, p) in zip(texts, checked, strict=True):
            outputs[llm._enqueue(prompt, token_ids, p)] = None
        while any(output is None for output in outputs.values()):
            for output in llm.step().finished:
                home = outputs if output.request_id in outputs else llm.uncollected
                home[output.request_id] = output
    except BaseException:
        for request_id in outputs:
            llm.abort(request_id)  # harmless for one that has finished
        raise
    # A dict keeps the order in which its keys came in: that of the prompts. The engine's own function also overlaps
    # steps on a GPU, lets Ctrl-C in between two steps only, and returns what was cancelled from elsewhere.
    return list(outputs.values())
    # solution: end
