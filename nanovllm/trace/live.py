"""The live engine between two steps as a record, without watching it: what the static views draw in a notebook."""

from dataclasses import replace
from typing import Any

from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.trace.record import Record
from nanovllm.trace.recorder import Recorder
from nanovllm.trace.state import State, capture, encode_state
from nanovllm.trace.tensors import TensorReader


def peek(engine: LLMEngine) -> Record:
    """The scheduler, the blocks and the newest step's tensors as they are now. There are no times and no changes."""
    recorder = Recorder(engine)
    state = capture(engine.scheduler)
    schedule = engine.last_schedule
    rows = [s.seq_id for s in schedule.seqs] if schedule else []
    kind = "idle" if not schedule or not rows else "prefill" if schedule.is_prefill else "decode"
    tokens = {str(s.seq_id): list(s.token_ids) for s in engine.scheduler.sequences.values()}
    line: dict[str, Any] = {"i": 0, "k": kind, "t": 0.0, "ph": {}, "b": encode_state(State(), state), "new": tokens}
    line["ar"] = [(s.seq_id, s.num_prompt_tokens) for s in engine.scheduler.sequences.values()]
    line["d"] = [[d.kind.value, d.seq_id, d.reason, dict(d.facts)] for d in engine.scheduler.decisions]
    if rows and engine.model_runner.last_batch is not None:
        line["x"] = TensorReader(engine.config.kvcache_block_size).read(engine.model_runner, rows, state)
    recorder.trace.append(line)
    recorder.learn_labels()
    return replace(recorder.trace[0], newest=True)
