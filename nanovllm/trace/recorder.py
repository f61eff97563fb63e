"""Watches an engine: hooks its events, copies the live state three times a step, reads the step's tensors."""

import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any

import numpy as np
import torch

from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.qwen3.parallel import CollectiveRecord
from nanovllm.scheduler import Decision, Sequence
from nanovllm.trace.cache_watch import CacheWatch
from nanovllm.trace.record import PHASES
from nanovllm.trace.state import State, capture, encode_state
from nanovllm.trace.tensors import TensorReader
from nanovllm.trace.trace import Trace


class Recorder:
    """Records every step of `engine` into `trace` while it is attached. Without one, the engine does nothing extra.

        with Recorder(llm) as recorder:
            llm.generate(prompts)
        recorder.trace.save("run.jsonl")

    watch_cache: also find out which cache slots changed in each step, from the first layer's keys themselves (reads
    that layer's pool twice a step). Callbacks that were set before keep being called, and are put back on exit.
    A step that fails leaves no record; the engine has undone it.
    """

    def __init__(self, engine: LLMEngine, watch_cache: bool = False) -> None:
        self.engine = engine
        self.trace = Trace(_header(engine))
        self._watch = CacheWatch(engine.model_runner) if watch_cache else None
        self._tensors = TensorReader(engine.config.kvcache_block_size)
        self._last = State()  # the newest state that a record ends with
        self._begun_at: float | None = None
        self._seen_decisions: tuple[list[Decision] | None, int] = (None, 0)  # which list, how many of it
        self._known_tokens: dict[int, int] = {}
        self._new_tokens: dict[str, list[int]] = {}  # not yet in a record, as are the arrivals
        self._arrivals: list[tuple[int, int]] = []  # request id, number of prompt tokens
        self._attached = False

    # --- attaching --------------------------------------------------------------------------------------------------

    def attach(self) -> "Recorder":
        """Start to record; attaching twice is refused, since it would record every step twice."""
        if self._attached:
            raise RuntimeError("this recorder is attached already: use one recorder an engine")
        self._attached = True
        self._older_event, self._older_phase = self.engine.on_event, self.engine.model_runner.on_phase
        self.engine.on_event = _both(self._older_event, self._on_event)
        self.engine.model_runner.on_phase = _both(self._older_phase, self._on_phase)
        self._own_collectives = self.engine.ranks.recorder is None
        if self._own_collectives:
            self.engine.ranks.record_collectives(True)
        return self

    def detach(self) -> None:
        """Stop recording and put the engine's callbacks back. Doing it twice is harmless."""
        if self._attached:
            self._attached = False
            self.engine.on_event, self.engine.model_runner.on_phase = self._older_event, self._older_phase
            if self._own_collectives and not self.engine.ranks.is_closed:
                self.engine.ranks.record_collectives(False)
            self.learn_labels()

    def __enter__(self) -> "Recorder":
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.detach()

    # --- one step ---------------------------------------------------------------------------------------------------

    def _on_event(self, name: str) -> None:
        if name == "begin":
            self._begin()
        elif name == "run":
            self._marks.append(("run", time.perf_counter()))
            self._run()
            self._pause()
        elif name == "end":
            self._marks.append(("end", time.perf_counter()))
            self._end()
        else:
            self._marks.append((name, time.perf_counter()))

    def _on_phase(self, name: str) -> None:
        self._marks.append((name, time.perf_counter()))

    def _pause(self) -> None:
        """Take the time spent in this recorder out of the phases."""
        self._marks.append(("prepare", time.perf_counter()))

    def _begin(self) -> None:
        """Copy the state that the step starts from. An unfinished step before this one failed and is forgotten."""
        scheduler = self.engine.scheduler
        self._marks: list[tuple[str, float]] = []
        self._before = capture(scheduler, previous=self._last)
        seen = self._seen_decisions
        late = scheduler.decisions[seen[1] :] if scheduler.decisions is seen[0] else []
        self._decisions = [d for d in late if d.seq_id is not None]  # cancelled between two steps
        self._live: dict[int, Sequence] = dict(scheduler.sequences)
        self._arrivals += [(i, s.num_prompt_tokens) for i, s in self._live.items() if i not in self._known_tokens]
        self._note_tokens()
        if self._watch is not None:
            self._watch.before()
        if self._begun_at is None:
            self._begun_at = time.perf_counter()

    def _note_tokens(self) -> None:
        known = self._known_tokens
        for seq_id, seq in self._live.items():
            count = known.get(seq_id, 0)
            if seq.num_tokens > count:
                self._new_tokens.setdefault(str(seq_id), []).extend(seq.token_ids[count:])
                known[seq_id] = seq.num_tokens

    def _run(self) -> None:
        """The batch is chosen and its blocks are reserved."""
        self._scheduled = capture(self.engine.scheduler, previous=self._before)
        self._note_batch()

    def _note_batch(self) -> None:
        schedule = self.engine.last_schedule
        self._rows = [s.seq_id for s in schedule.seqs] if schedule else []
        self._is_prefill = bool(schedule and schedule.is_prefill)

    def _end(self) -> None:
        self._note_batch()  # again: another hook may have cancelled requests before they ran
        scheduler = self.engine.scheduler
        leavers = [s for i, s in self._live.items() if i not in scheduler.sequences and i in self._scheduled.tables]
        after = capture(scheduler, leavers, previous=self._scheduled)
        self._note_tokens()
        decisions = self._decisions + scheduler.decisions
        self._seen_decisions = (scheduler.decisions, len(scheduler.decisions))
        line: dict[str, Any] = {
            "i": len(self.trace),
            "k": "idle" if not self._rows else "prefill" if self._is_prefill else "decode",
            "t": round(self._marks[0][1] - (self._begun_at or 0.0), 6),
            "ph": self._phases(),
            "b": encode_state(self._last, self._before),
            "s": encode_state(self._before, self._scheduled),
            "a": encode_state(self._scheduled, after),
            "d": [_plain(d) for d in decisions],
        }
        if self._rows:
            runner = self.engine.model_runner
            line["x"] = self._tensors.read(runner, self._rows, self._scheduled)
        if self._watch is not None:
            line["ch"] = self._watch.changed()
        extras = {"new": self._new_tokens, "ar": self._arrivals, "col": self._collectives()}
        self.trace.append(line | {key: value for key, value in extras.items() if value})
        self._last, self._new_tokens, self._arrivals = after, {}, []

    def _phases(self) -> dict[str, float]:
        """Seconds of each phase, from the marks; the recorder's own copying is left out."""
        names = {"schedule": "schedule", "prepare": "prepare", "forward": "forward", "sample": "sample"}
        names["postprocess"] = "postprocess"
        spent = dict.fromkeys(PHASES, 0.0)
        for (name, start), (_, stop) in zip(self._marks, self._marks[1:], strict=False):
            if name in names:
                spent[names[name]] += stop - start
        return {name: round(seconds, 7) for name, seconds in spent.items()}

    def _collectives(self) -> list[dict[str, Any]]:
        """The collectives of rank 0 in this step; none for a single rank or an idle step."""
        recorder = self.engine.ranks.recorder
        return [_as_dict(c) for c in recorder.records] if recorder is not None and self._rows else []

    def learn_labels(self) -> None:
        """Decode each token id once, so that views can show text."""
        tokenizer, labels = self.engine.tokenizer, self.trace.labels
        if tokenizer is not None:
            seen = {t for tokens in self.trace.token_ids.values() for t in tokens}
            labels.update({t: tokenizer.decode([t]) for t in sorted(seen - labels.keys())})


def _both(first: Callable[[str], None] | None, second: Callable[[str], None]) -> Callable[[str], None]:
    if first is None:
        return second
    older = first

    def call(name: str) -> None:
        older(name)
        second(name)

    return call


def _plain(decision: Decision) -> list[Any]:
    return [decision.kind.value, decision.seq_id, decision.reason, dict(decision.facts)]


def _as_dict(collective: CollectiveRecord) -> dict[str, Any]:
    return asdict(collective) | {"shape": list(collective.shape)}


def _header(engine: LLMEngine) -> dict[str, Any]:
    config, manager = engine.config, engine.scheduler.block_manager
    model = engine.plan.model_config
    return {
        "limits": {
            "block_size": manager.block_size,
            "num_blocks": manager.num_blocks,
            "max_num_seqs": engine.scheduler.max_num_seqs,
            "max_num_batched_tokens": engine.scheduler.max_num_batched_tokens,
            "max_model_len": engine.scheduler.max_model_len,
        },
        "model": {
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_layers": model.num_hidden_layers,
            "num_heads": model.num_attention_heads,
            "num_kv_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
            "vocab_size": model.vocab_size,
        },
        "tensor_parallel_size": config.tensor_parallel_size,
        "device": engine.plan.device_type,
        "backend": engine.plan.backend.name,
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
    }
