"""The engine: it owns every request's state, and `step` is its definition."""

import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from nanovllm.config import EngineConfig
from nanovllm.engine.checkpoint import eos_token_ids, load_tokenizer, resolve_checkpoint
from nanovllm.engine.metrics import RequestMetrics
from nanovllm.engine.model_ranks import ModelRanks
from nanovllm.engine.outputs import RequestOutput, StepOutput
from nanovllm.engine.requests import Prompt, check_checkpoint_limit, check_prompt
from nanovllm.engine.startup import Plan, make_plan
from nanovllm.engine.texts import CompletionTexts
from nanovllm.errors import NanoVLLMError, RequestError
from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import BlockManager, Schedule, Scheduler, Sequence


class LLMEngine:
    """Requests in, tokens out, one step at a time. `LLM` adds generate() and chat().

    model and limits: see `EngineConfig`. Raises ConfigError, CheckpointError, BackendError or MemoryBudgetError,
    and RankError when another rank fails, after which the engine is closed.
    prepare, setup: functions that every rank calls with its `RankExecutor`, before its model is built and after.
    on_event: called with "begin", "schedule", "run", "postprocess", "end" during a step; None costs nothing.
    """

    def __init__(
        self,
        model: str,
        *,
        setup: Iterable[Callable[[Any], None]] = (),
        prepare: Iterable[Callable[[Any], None]] = (),
        **limits: Any,
    ) -> None:
        self.config = EngineConfig.from_limits(model, **limits)
        folder = resolve_checkpoint(self.config.model)
        self.plan = make_plan(self.config, folder, tuple(setup), tuple(prepare))
        self.ranks, self.tokenizer, eos = _start(self.plan)
        self.model_runner = self.ranks.runner
        self.scheduler = Scheduler(
            BlockManager(self.ranks.num_blocks, self.config.kvcache_block_size),
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_model_len=self.plan.max_model_len,
            eos_token_ids=eos,
        )
        self.on_event: Callable[[str], None] | None = None
        self.policy: Callable[[Scheduler], Schedule] | None = None  # chooses in place of Scheduler.schedule
        self.last_schedule: Schedule | None = None  # of the newest step, for traces
        self._seeds = random.Random(self.config.seed)
        self._next_request_id = 0
        self._prompts: dict[int, str | None] = {}
        self._texts = CompletionTexts(self.tokenizer)
        self._metrics: dict[int, RequestMetrics] = {}
        self.uncollected: dict[int, RequestOutput] = {}  # finished during a generate() that did not ask for them
        self._awaited: dict[int, RequestOutput | None] = {}  # what a generate() under way waits for
        self._closed = False

    # --- requests ---------------------------------------------------------------------------------------------------

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> int:
        """Queue a prompt (text or token ids) and return its request id. Raises RequestError with nothing changed."""
        token_ids, params = self.check_request(prompt, sampling_params)
        return self._enqueue(prompt, token_ids, params)

    def check_request(self, prompt: Prompt, sampling_params: SamplingParams | None) -> tuple[list[int], SamplingParams]:
        """The token ids and sampling parameters of a request that could run, or RequestError saying why not."""
        self.check_open()
        params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be a SamplingParams, not {type(params).__name__}")
        model = self.plan.model_config
        token_ids = check_prompt(prompt, self.tokenizer, model.vocab_size)
        check_checkpoint_limit(len(token_ids), self.plan.max_model_len, model.max_position_embeddings)
        self.scheduler.check_fits(len(token_ids), params.max_tokens)
        return token_ids, params

    def _enqueue(self, prompt: Prompt, token_ids: list[int], params: SamplingParams) -> int:
        request_id = self._next_request_id
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
        self.scheduler.add(Sequence(request_id, token_ids, params, self.config.kvcache_block_size, seed))
        self._next_request_id += 1
        self._prompts[request_id] = prompt if isinstance(prompt, str) else None
        self._metrics[request_id] = RequestMetrics(time.perf_counter(), num_prompt_tokens=len(token_ids))
        return request_id

    def abort(self, request_id: int) -> RequestOutput | None:
        """Cancel a request in any state and return what it had; None if it is unknown or has finished already."""
        seq = self.scheduler.sequences.get(request_id)
        if seq is None:
            return None
        self.scheduler.abort(request_id)
        [output] = self._finish([seq])
        if request_id in self._awaited:
            self._awaited[request_id] = output
        return output

    def is_finished(self) -> bool:
        """True when no request is waiting or running."""
        return self.scheduler.is_finished()

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> StepOutput:
        """Schedule, run, postprocess. If the run fails the schedule is undone, so that no request is lost."""
        self.check_open()
        self._event("begin")
        self._event("schedule")
        schedule = self.last_schedule = self.policy(self.scheduler) if self.policy else self.scheduler.schedule()
        try:
            if self.on_event is not None:
                self._event("run")  # whose hook may cancel requests of this very step
                schedule = self.last_schedule = schedule.without_finished()
            token_ids = self._run(schedule)
            self._event("postprocess")
        except BaseException:
            self.scheduler.rollback(schedule)
            raise
        output = self.book(schedule, token_ids)
        self._event("end")
        return output

    @property
    def can_overlap(self) -> bool:
        """True when `generate` may launch a step before the last one's tokens are read; never while someone watches."""
        watched = self.on_event is not None or self.model_runner.on_phase is not None
        wanted = self.config.overlap if self.config.overlap is not None else self.model_runner.graphs is not None
        return wanted and not watched

    def book(self, schedule: Schedule, token_ids: list[int | None]) -> StepOutput:
        """Enter a step that ran: the scheduler's bookkeeping, and outputs for the requests that it finished."""
        num_tokens = sum(seq.num_scheduled_tokens for seq in schedule.seqs)
        self.scheduler.postprocess(schedule.seqs, token_ids, schedule.is_prefill)
        output = StepOutput(schedule.is_prefill, len(schedule.seqs), num_tokens)
        self._collect(schedule, token_ids, output)
        return output

    def _run(self, schedule: Schedule) -> list[int | None]:
        """The forward pass of every rank; the sampled ids come from rank 0."""
        if not schedule.seqs:
            return []
        slices = [seq.scheduled_slice() for seq in schedule.seqs]
        sampled = [seq for seq, s in zip(schedule.seqs, slices, strict=True) if s.needs_token]
        inputs = SamplingInputs.of(sampled)
        return self.ranks.run(slices, schedule.is_prefill, inputs, self.scheduler.sequences)

    def _collect(self, schedule: Schedule, token_ids: list[int | None], output: StepOutput) -> None:
        """Note the new tokens and build the outputs of requests that this step finished."""
        now, metrics, new_tokens, finished = time.perf_counter(), self._metrics, output.new_tokens, []
        for seq, token_id in zip(schedule.seqs, token_ids, strict=True):
            request_id = seq.seq_id
            if token_id is None or request_id not in metrics:
                continue
            new_tokens.append((request_id, token_id))
            if schedule.is_prefill and metrics[request_id].first_token_time is None:
                metrics[request_id].first_token_time = now
            if seq.is_finished:
                finished.append(seq)
        output.finished += self._finish(finished)

    def _finish(self, seqs: list[Sequence]) -> list[RequestOutput]:
        """Turn finished sequences into their outputs and forget them."""
        return [self._output(seq, text) for seq, text in zip(seqs, self._texts.finish(seqs), strict=True)]

    def _output(self, seq: Sequence, text: str) -> RequestOutput:
        metrics = self._metrics.pop(seq.seq_id)
        metrics.finish_time = time.perf_counter()
        metrics.num_completion_tokens = seq.num_completion_tokens
        metrics.num_prefix_tokens = seq.num_prefix_tokens
        metrics.num_preemptions = seq.num_preemptions
        metrics.num_recomputed_tokens = seq.num_recomputed_tokens
        assert seq.finish_reason is not None
        return RequestOutput(
            request_id=seq.seq_id,
            prompt=self._prompts.pop(seq.seq_id),
            prompt_token_ids=seq.token_ids[: seq.num_prompt_tokens],
            text=text,
            token_ids=seq.completion_token_ids,
            finish_reason=seq.finish_reason.value,
            metrics=metrics,
        )

    def _event(self, name: str) -> None:
        if self.on_event is not None:
            self.on_event(name)

    # --- lifetime ---------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise NanoVLLMError if the engine has been closed, by `exit` or by a failing rank."""
        if self._closed or self.ranks.is_closed:
            raise NanoVLLMError("this engine is closed: build a new one")

    def exit(self) -> None:
        """Give back the memory. Doing it twice is harmless; the engine cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self.ranks.close()

    close = exit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.exit()


def _start(plan: Plan) -> tuple[ModelRanks, Any, frozenset[int]]:
    """The ranks, the tokenizer (or None), and the ids that end a completion. The tokenizer comes first, so that damaged
    files are refused before the weights are read.

    An engine that compiles and records for seconds reads it meanwhile: importing and filling one takes seconds too.
    """

    def read() -> tuple[Any, frozenset[int]]:
        tokenizer = None if plan.config.skip_tokenizer_init else load_tokenizer(plan.folder)
        return tokenizer, eos_token_ids(plan.folder, tokenizer)

    if plan.device_type != "cuda" or plan.config.enforce_eager:
        tokenizer, eos = read()
        return ModelRanks(plan), tokenizer, eos
    with ThreadPoolExecutor(1, "tokenizer") as beside:
        reading = beside.submit(read)
        ranks = ModelRanks(plan)
    try:
        return ranks, *reading.result()
    except BaseException:
        ranks.close()
        raise
