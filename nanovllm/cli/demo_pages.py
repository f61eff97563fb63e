"""What the demo prints around the drawings: an introduction, a page for each drawn step, the answers, a summary."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from nanovllm.cli import demo_views as views
from nanovllm.cli.demo_script import LESSONS, LIMITS, Demo
from nanovllm.cli.palette import BAD, DIM, GOOD, HEAD, chip
from nanovllm.trace import EventKind, Record

LABEL_WIDTH = 9
TITLES = {
    "first prefill": "the first prefill",
    "chunk": "the next chunk of a long prompt",
    "prefix hit": "a prefix found in the cache",
    "first decode": "the first decode",
    "block allocation": "a block is taken",
    "preemption": "a preemption",
    "finish": "requests finish",
    "return": "a preempted request returns",
}


def labelled(rows: list[tuple[str, RenderableType]]) -> Table:
    """Parts of a page, each with its name in a narrow column on the left."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=LABEL_WIDTH, style=DIM, no_wrap=True)
    table.add_column(ratio=1)
    for label, part in rows:
        table.add_row(label, part)
    return table


def shortened(text: str, length: int) -> str:
    """A text on one line; only its end when it is longer than `length`, since that is where the question stands."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else "… " + flat[-(length - 2) :]


def intro(demo: Demo) -> Group:
    """What is about to happen and how to read it."""
    size, blocks = LIMITS["kvcache_block_size"], LIMITS["num_kvcache_blocks"]
    about = (
        f"Eight requests go to a small engine at once. Its memory for keys and values (K/V) is a pool of {blocks} "
        f"blocks of {size} tokens, and a prefill step holds {LIMITS['max_num_batched_tokens']} prompt tokens. That is "
        "too little for all of them, so the scheduler has to decide. Watch how, then see whether every answer is right."
    )
    asked = Table(box=None, padding=(0, 2, 0, 0), header_style=DIM)
    asked.add_column("request", no_wrap=True)
    asked.add_column("tokens", justify="right", no_wrap=True, min_width=6)
    asked.add_column("prompt (its end)", no_wrap=True, overflow="ellipsis", ratio=1)
    for i, question in enumerate(demo.questions):
        tokens = demo.llm.scheduler.sequences[i].num_prompt_tokens
        asked.add_row(chip(i, question.task), str(tokens), Text(shortened(question.prompt, 60)))
    read = labelled(
        [
            ("decided", "what the scheduler decided for this step, and why"),
            ("waiting", "the queue of requests that are not (fully) computed yet, next one on the left"),
            ("running", "the requests that produce tokens, oldest on the left"),
            ("batch", "the tokens that this step computes, and the slot where each one's K/V go"),
            ("tables", "the blocks of each request, in the order of its text: + just taken, ↻ found in the cache"),
            ("tokens", "what came out"),
            ("pool", "who owns each block after the step: 0+1 is shared, · is free, ○ is free and still findable"),
        ]
    )
    model = f"nanovllm demo · qwen3-tiny on {demo.llm.plan.device_type}, {demo.llm.plan.backend.name} backend"
    parts: list[RenderableType] = [Rule(Text(model, HEAD), align="left", style=DIM), Text(about), Text("")]
    return Group(*parts, asked, Text(""), Text("How to read a step", HEAD), read)


def step_page(demo: Demo, record: Record, lessons: list[str]) -> Group:
    """One step: its title, what to learn from it, and every drawing."""
    title = Text(f"step {record.step} · {record.kind} of {_amount(record)}", HEAD)
    title.append(" · " + ", ".join(TITLES[name] for name in lessons), "default")
    rows: list[tuple[str, RenderableType]] = [
        ("decided", views.decisions_view(record)),
        ("", ""),
        ("waiting", views.deque_view(record.scheduled.waiting, demo.names())),
        ("running", views.deque_view(record.scheduled.running, demo.names())),
        ("", ""),
        ("batch", views.batch_view(record, demo.text_of)),
        ("", ""),
        ("tables", views.block_tables_view(record)),
        ("", ""),
        ("tokens", views.sampled_view(record, demo.text_of)),
    ]
    rows += [("finished", finished_line(demo, i)) for i in finished(record)]
    rows += [("", ""), ("pool", Group(views.pool_view(record.after), views.pool_counts(record.after)))]
    said = Group(*(Padding(views.with_chips(LESSONS[name]), (0, 0, 0, 0), style="italic") for name in lessons))
    return Group(Text(""), Rule(title, align="left", style=DIM), said, Text(""), labelled(rows))


def _amount(record: Record) -> str:
    rows = len(record.tensors.rows) if record.tensors else 0
    return f"{record.num_tokens} token{'s' * (record.num_tokens != 1)}, {rows} request{'s' * (rows != 1)}"


def finished(record: Record) -> list[int]:
    """The requests that a step ended."""
    return [event.seq_id for event in record.events() if event.kind is EventKind.FINISH]


def finished_line(demo: Demo, request: int) -> Text:
    """A finished request with its answer."""
    text = chip(request, demo.questions[request].task)
    text.append(f" {shortened(demo.outputs[request].text, 50)} ", "default on default")
    return text.append_text(verdict(demo, request))


def verdict(demo: Demo, request: int) -> Text:
    """right or wrong, told apart by the word and the sign, not by colour alone."""
    return Text("✓ right", GOOD) if demo.is_right(request) else Text("✗ wrong", BAD)


class Skipped:
    """Steps that are not drawn: counted, with a line for each request that finishes or is preempted in them."""

    def __init__(self) -> None:
        self._lines: list[Text] = []
        self._counts: Counter[str] = Counter()

    def add(self, demo: Demo, record: Record) -> None:
        """Book a step; one that ends or preempts a request closes the count before it with a line."""
        self._counts[record.kind] += 1
        told = [finished_line(demo, i) for i in finished(record)]
        told += [views.with_chips(e.what) for e in record.events() if e.kind is EventKind.PREEMPTION]
        if told:
            self._close()
            self._lines += [Text(f"step {record.step:<4} ", DIM).append_text(line) for line in told]

    def _close(self) -> None:
        counts = [f"{n} {kind} step{'s' * (n != 1)}" for kind, n in self._counts.items()]
        self._counts.clear()
        if counts:
            self._lines.append(Text(f"… {', '.join(counts)}", DIM))

    def flush(self) -> list[RenderableType]:
        """The lines so far; begins anew."""
        self._close()
        lines, self._lines = self._lines, []
        return [Text(""), *lines] if lines else []


def answers_page(demo: Demo) -> Group:
    """Every request's answer, and whether it is the right one."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=DIM)
    table.add_column("request", no_wrap=True)
    table.add_column("asked", overflow="fold", ratio=1)
    table.add_column("answer", overflow="fold", ratio=1)
    table.add_column("", no_wrap=True)
    for i, question in enumerate(demo.questions):
        said = Text(demo.outputs[i].text.strip())
        if not demo.is_right(i):
            said.append(f"\nexpected: {question.answer.strip()}", BAD)
        last_line = question.prompt.split("Q: ")[-1].replace("\nA:", "")
        asked = f"{last_line} ({question.gap} tokens back)" if question.gap else last_line
        table.add_row(chip(i, question.task), Text(asked), said, verdict(demo, i))
    return Group(Text(""), Rule(Text("the answers", HEAD), align="left", style=DIM), table)


def summary(demo: Demo, seconds: float) -> Text:
    """One line: how many are right, and what it took."""
    right, total = sum(demo.is_right(i) for i in range(len(demo.questions))), len(demo.questions)
    metrics = [output.metrics for output in demo.outputs.values()]
    cached, tokens = sum(m.num_prefix_tokens for m in metrics), sum(m.num_completion_tokens for m in metrics)
    preemptions = sum(m.num_preemptions for m in metrics)
    text = Text("\n").append(f"{right} of {total} answers right", GOOD if right == total else BAD)
    return text.append(
        f" · {len(demo.recorder.trace)} steps, {tokens} tokens, {seconds:.1f} s · {cached} tokens from the prefix "
        f"cache · {preemptions} preemption{'s' * (preemptions != 1)}"
    )
