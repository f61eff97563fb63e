"""The demo's eight requests and its small engine, chosen so that everything a scheduler does happens in 50 steps."""

import random
from dataclasses import dataclass, field
from typing import Any

from nanovllm.assets import tasks
from nanovllm.assets.tasks import TASKS, Example
from nanovllm.engine.llm import LLM
from nanovllm.engine.outputs import RequestOutput
from nanovllm.sampling_params import SamplingParams
from nanovllm.trace import EventKind, Record, Recorder

MAX_TOKENS = 96
LIMITS: dict[str, Any] = {
    "kvcache_block_size": 16,
    "num_kvcache_blocks": 48,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "max_model_len": 1024,
}
# why a step is drawn -> what there is to learn from it
LESSONS = {
    "first prefill": "The prompt of #0 is longer than the 256 tokens that a prefill step may hold, so only its first "
    "chunk is computed. Its blocks are reserved for the whole prompt.",
    "chunk": "The prompt goes on where the last chunk ended. #0 stays at the head of the queue until it is complete.",
    "prefix hit": "The text of #1 begins like that of #0, and those blocks are computed already. It takes them over "
    "and computes only the rest. The others follow while blocks are left.",
    "first decode": "Nothing more can be admitted, so every running request gets one token. Each new token's K/V go "
    "to exactly one slot: block x 16 + place in the block.",
    "block allocation": "A request whose last block is full takes a free one: memory grows with the text, 16 tokens at "
    "a time.",
    "preemption": "A request needs a block and none is free. The youngest running request gives up all of its blocks "
    "and goes back to the head of the queue.",
    "finish": "A request is done, and its blocks are free again at once. They keep their content, so a later prompt "
    "with the same beginning can still find them (○).",
    "return": "The preempted request is back. Its full blocks are still there, so only its last tokens are computed "
    "again, and it goes on as if nothing had happened.",
}


@dataclass(slots=True)
class Demo:
    """A run under way: the engine, what is recorded of it, and what came out so far."""

    llm: LLM
    recorder: Recorder
    questions: list[Example]
    outputs: dict[int, RequestOutput] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def step(self) -> Record:
        """Run one step and return its record."""
        for output in self.llm.step().finished:
            self.outputs[output.request_id] = output
        return self.recorder.trace[len(self.recorder.trace) - 1]

    def names(self) -> list[str]:
        """The task of each request."""
        return [question.task for question in self.questions]

    def is_right(self, request: int) -> bool:
        """Whether a finished request's text is its task's one right answer."""
        question = self.questions[request]
        return TASKS[question.task].correct(question, self.outputs[request].text)

    def text_of(self, token_id: int) -> str:
        """One token as text."""
        assert self.llm.tokenizer is not None, "the shipped checkpoint has a tokenizer"
        return str(self.llm.tokenizer.decode([token_id]))

    def lessons(self, record: Record) -> list[str]:
        """What this step is the first to show, as keys of LESSONS."""
        new = [name for name in happenings(record) if name not in self._seen]
        self._seen.update(new)
        return new


def happenings(record: Record) -> list[str]:
    """What happens in a step, as keys of LESSONS."""
    kinds = {event.kind for event in record.events()}
    preempted_before = record.scheduled.column("num_preemptions")
    admitted = [event.seq_id for event in record.events() if event.kind is EventKind.ADMISSION]
    shows = {
        "first prefill": record.kind == "prefill",
        "chunk": EventKind.CHUNK in kinds and EventKind.ADMISSION not in kinds,
        "prefix hit": EventKind.PREFIX_HIT in kinds,
        "first decode": record.kind == "decode",
        "block allocation": record.kind == "decode" and EventKind.BLOCK_ALLOCATION in kinds,
        "preemption": EventKind.PREEMPTION in kinds,
        "finish": EventKind.FINISH in kinds,
        "return": any(preempted_before.get(seq_id, 0) for seq_id in admitted),
    }
    return [name for name, is_shown in shows.items() if is_shown]


def questions() -> list[Example]:
    """Eight examples of the shipped tasks. The first two ask about facts in one long text, far back and less far."""
    text = tasks.passage(random.Random(11), 587, density=0.12)
    return [
        text.ask(0),
        text.ask(len(text.facts) // 2),
        tasks.count(random.Random(0), start=96, shown=4),
        tasks.copy(random.Random(3), length=8),
        tasks.sort(random.Random(5), length=6),
        tasks.series(random.Random(6)),
        tasks.add(random.Random(9)),
        tasks.count_to(random.Random(0), start=95, length=12),
    ]


def start(**machine: Any) -> Demo:
    """Build the small engine and queue the requests. `machine`: device, dtype, attention_backend."""
    llm = LLM("qwen3-tiny", **LIMITS, **machine)
    recorder = Recorder(llm).attach()
    asked = questions()
    for question in asked:
        llm.add_request(question.prompt, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    return Demo(llm, recorder, asked)
