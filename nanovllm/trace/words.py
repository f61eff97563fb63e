"""A step in words: what just happened, and why."""

from nanovllm.trace.record import EventKind, Record


def explain(record: Record) -> list[str]:
    """Sentences about one step, the most general first. They use the scheduler's own reasons."""
    return [_headline(record), *_events(record), *_deferred(record), _memory(record)]


def _headline(record: Record) -> str:
    if record.kind == "idle":
        return f"Step {record.step} found nothing that can run."
    scheduled = record.scheduled.column("num_scheduled_tokens")
    rows = record.tensors.rows if record.tensors else [i for i, count in scheduled.items() if count]
    who = f"request {rows[0]}" if len(rows) == 1 else f"{len(rows)} requests"
    if record.kind == "decode":
        what = "its newest token" if len(rows) == 1 else "the newest token of each"
        return f"Step {record.step} is a decode: {who}, {what} goes in and the next comes out."
    tokens = "1 prompt token" if record.num_tokens == 1 else f"{record.num_tokens} prompt tokens"
    are = "is" if record.num_tokens == 1 else "are"
    return f"Step {record.step} is a prefill: {tokens} of {who} {are} computed at once; running requests wait."


def _events(record: Record) -> list[str]:
    found = [e for e in record.events() if e.kind is not EventKind.CHUNK]
    arrived = [str(e.seq_id) for e in found if e.kind is EventKind.ARRIVAL]
    sentences = []
    if arrived:
        noun = "Requests" if len(arrived) > 1 else "Request"
        sentences.append(f"{noun} {', '.join(arrived)} arrived and went to the end of the waiting queue.")
    for kind in (EventKind.PREEMPTION, EventKind.ADMISSION):
        sentences += [_sentence(e.what) for e in found if e.kind is kind]
    sentences += [_sentence(n.reason) for n in record.decisions if n.kind == "continue"]
    for kind, start in ((EventKind.PREFIX_HIT, "Prefix cache"), (EventKind.BLOCK_ALLOCATION, "New blocks")):
        what = [e.what for e in found if e.kind is kind]
        sentences += [f"{start}: {'; '.join(what)}."] if what else []
    return sentences + [_sentence(e.what) for e in found if e.kind is EventKind.FINISH]


def _deferred(record: Record) -> list[str]:
    return [_sentence(n.reason) for n in record.decisions if n.kind == "defer"]


def _memory(record: Record) -> str:
    free, total = len(record.after.free), len(record.after.refs)
    reusable = len(record.after.reusable)
    found = f", {reusable} of them still findable by their prefix" if reusable else ""
    return f"After the step {total - free} of {total} blocks are used and {free} free{found}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
