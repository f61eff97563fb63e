"""Random steps of sequences whose block tables grow, are given up and come back; and what a worker must understand."""

import random
from typing import Any

TRACE = """\
import pickle
from types import SimpleNamespace
from nanovllm.engine.step_codec import StepDecoder, StepEncoder
from nanovllm.scheduler.sequence import ScheduledSlice
encoder, decoder, own, result = StepEncoder(), StepDecoder(), {}, []
for is_prefill, rows, live in steps:
    slices = []
    for seq_id, chunk, start, total, table, is_new in rows:
        if is_new:
            own[seq_id] = []
        own[seq_id] += table[len(own[seq_id]):]
        slices.append(ScheduledSlice(seq_id, chunk, start, total, own[seq_id]))
    sequences = {i: SimpleNamespace(block_table=own[i]) for i in live}
    message = pickle.loads(pickle.dumps(encoder.encode(slices, is_prefill, sequences)))
    sent = sum(len(new) for seq_id, keep, new in message.tables)
    got = [[s.seq_id, s.token_ids, s.start, s.num_tokens, list(s.block_table)] for s in decoder.decode(message)]
    result.append(dict(block_ids_sent=sent, slices=got))
decoder.decode(encoder.encode([], False, {}))
result.append(sorted(decoder.tables))"""
BLOCK = 2  # tokens of a block in the traces


def random_steps(rng: random.Random, seqs: int, steps: int) -> dict[str, Any]:
    """Sequences that are prefilled, decode, are preempted (some get the same blocks again) and finish."""
    cached: dict[int, int] = {}
    tables: dict[int, list[int]] = {}
    made = []
    for _ in range(steps):
        is_prefill = rng.random() < 0.5
        rows = []
        for seq_id in rng.sample(range(seqs), rng.randint(1, seqs)):
            is_new = seq_id not in cached or rng.random() < 0.2
            if is_new and not is_prefill:
                continue
            start = 0 if is_new else cached[seq_id]
            count = rng.randint(1, 5) if is_prefill else 1
            length = -(-(start + count) // BLOCK)
            old = tables.get(seq_id, [])
            table = old[:1] if is_new and rng.random() < 0.7 else [] if is_new else list(old)
            table += [rng.randrange(100) for _ in range(length - len(table))]
            total = start + count + (rng.randint(0, 3) if is_prefill else 0)
            rows.append([seq_id, [rng.randrange(50) for _ in range(count)], start, total, table, is_new])
            cached[seq_id], tables[seq_id] = start + count, table
        for seq_id in [i for i in cached if rng.random() < 0.15 and i not in [row[0] for row in rows]]:
            del cached[seq_id]  # finished
        made.append([is_prefill, rows, sorted(cached)])
    return {"steps": made}


def understood(steps: list[Any]) -> list[Any]:
    """The answer of TRACE: the block ids that each step had to send, and its slices; at the end nothing is known."""
    sent: dict[int, int] = {}
    answers: list[Any] = []
    for _, rows, live in steps:
        ids = 0
        for seq_id, _, _, _, table, is_new in rows:
            ids += len(table) - (0 if is_new else sent.get(seq_id, 0))
            sent[seq_id] = len(table)
        answers.append({"block_ids_sent": ids, "slices": [row[:5] for row in rows]})
        sent = {i: length for i, length in sent.items() if i in live}
    return [*answers, []]
