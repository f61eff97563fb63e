"""The demo's run as plain values, for `nanovllm demo --json`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm.cli.demo_script import Demo
    from nanovllm.trace import Record


def as_json(demo: "Demo") -> dict[str, Any]:
    """Limits, answers and every step of a finished run."""
    answers = [answer(demo, i) for i in range(len(demo.questions))]
    trace = demo.recorder.trace
    return {
        "limits": trace.header["limits"],
        "all_right": all(a["right"] for a in answers),
        "answers": answers,
        "steps": [step(trace[i]) for i in range(len(trace))],
    }


def answer(demo: "Demo", request: int) -> dict[str, Any]:
    """One request: what was asked, what came out, and whether it is right."""
    question, output = demo.questions[request], demo.outputs[request]
    return {
        "request": request,
        "task": question.task,
        "prompt": question.prompt,
        "expected": question.answer,
        "text": output.text,
        "right": demo.is_right(request),
        "finish_reason": output.finish_reason,
        "num_prompt_tokens": output.metrics.num_prompt_tokens,
        "num_completion_tokens": output.metrics.num_completion_tokens,
        "num_prefix_tokens": output.metrics.num_prefix_tokens,
        "num_preemptions": output.metrics.num_preemptions,
    }


def step(record: "Record") -> dict[str, Any]:
    """One step: decisions, queues and block tables while it ran, and what was on the device."""
    tensors = record.tensors
    return {
        "step": record.step,
        "kind": record.kind,
        "seconds": round(record.seconds, 6),
        "num_tokens": record.num_tokens,
        "decisions": [note.reason for note in record.decisions],
        "events": [{"kind": e.kind.value, "request": e.seq_id, "what": e.what} for e in record.events()],
        "waiting": record.scheduled.waiting,
        "running": record.scheduled.running,
        "block_tables": {str(i): table for i, table in record.scheduled.tables.items()},
        "batch": tensors.rows if tensors else [],
        "positions": tensors.positions if tensors else [],
        "slot_mapping": tensors.slot_mapping if tensors else [],
        "sampled": dict(zip(map(str, tensors.sampled_rows), tensors.sampled, strict=True))
        if tensors and tensors.sampled
        else {},
        "num_free_blocks": len(record.after.free),
    }
