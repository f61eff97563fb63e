"""4.2 The message codec."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part4 import table_traces

_CHANGES = """\
from nanovllm.engine.step_codec import StepEncoder
from nanovllm.scheduler.sequence import ScheduledSlice
encoder, table = StepEncoder(), [7]
def change(table):
    return encoder._change(ScheduledSlice(5, [1], len(table) - 1, len(table), table))
result = [change(table), change(table)]
table.append(2)
result += [change(table), change(table)]
table += [9, 4]
result.append(change(table))
result += [change([3, 4]), change([3, 4])]  # twice a new list: given up and got back in between"""
_SHORTER = """\
from nanovllm.engine.step_codec import StepEncoder
from nanovllm.scheduler.sequence import ScheduledSlice
encoder, table = StepEncoder(), [7, 2]
def change():
    return encoder._change(ScheduledSlice(5, [1], 0, 1, table))
result = [change()]
table[:] = [6]
result.append(change())
table[:] = [5, 8]
result.append(change())"""
_GONE = """\
from types import SimpleNamespace
from nanovllm.engine.step_codec import StepEncoder
from nanovllm.scheduler.sequence import ScheduledSlice
encoder = StepEncoder()
tables = {seq_id: [seq_id + 10] for seq_id in (1, 2, 3)}
for seq_id, table in tables.items():
    encoder._change(ScheduledSlice(seq_id, [1], 0, 1, table))
live = {i: SimpleNamespace(block_table=tables[i]) for i in (1, 2)}  # 3 has finished
result = [encoder._drop_released(live), encoder._drop_released(live)]
live[1].block_table = [11]  # preempted, and given the same block again
result += [encoder._drop_released(live), encoder._drop_released(live), sorted(encoder._sent)]"""
_DECODE = """\
from nanovllm.engine.step_codec import StepDecoder, StepMessage
decoder = StepDecoder()
def step(*message):
    slices = decoder.decode(StepMessage(*message))
    return [[s.seq_id, s.token_ids, s.start, s.num_tokens, list(s.block_table)] for s in slices]
result = [
    step(True, [5, 6], [1, 2, 3, 4], [3, 1], [0, 2], [3, 9], [(5, 0, [7]), (6, 0, [8, 9])], []),
    step(False, [6, 5], [1, 2], None, [3, 3], None, [(5, 1, [4])], []),
    step(False, [5], [3], None, [4], None, [], [6]),
    sorted(decoder.tables),
]"""
EXERCISE = Exercise(
    number="4.2",
    title="The message codec",
    file="part4/ex02_message_codec.py",
    pieces=(
        ("change", seams.CHANGE),
        ("drop_released", seams.DROP_RELEASED),
        ("decode", seams.DECODE_MESSAGE),
    ),
    uses_torch=True,
    hints=(
        "Play both sides on paper: what does the worker know of a table, and what is the least it must be told? Then "
        "let the sequence be preempted and come back.",
        "The worker may keep what it has if the list is the same object (`is`), at least as long as it was, and its "
        "entry at length - 1 is the one that was last. Otherwise keep is 0. A sequence is gone if not in live, or "
        "live has another list for it.",
        "return (s.seq_id, keep, table[keep:]) after encoder._sent[s.seq_id] = _Sent(table, len(table), table[-1]). "
        "decode: delete the dropped, then += new if keep else = new; num_tokens is message.totals[i], or start + 1 "
        "when it is None.",
    ),
    groups=(
        Group(
            "only what changed",
            1,
            "Write down what the worker knows after each message. What is the shortest message that makes it right?",
            (
                Example(
                    _CHANGES, [[5, 0, [7]], None, [5, 1, [2]], None, [5, 2, [9, 4]], [5, 0, [3, 4]], [5, 0, [3, 4]]]
                ),
                Example(
                    _SHORTER,
                    [[5, 0, [7, 2]], [5, 0, [6]], [5, 0, [5, 8]]],
                    "The same list object, but shorter than it was, or with another entry where the last one stood.",
                ),
            ),
        ),
        Group(
            "who gave up blocks",
            1,
            "Two kinds of sequences are gone: those that live no more, and those whose list is another one. Is each "
            "named once only?",
            (Example(_GONE, [[3], [], [1], [], [2]]),),
        ),
        Group(
            "the slices of a worker",
            1,
            "Bring the tables up to date before a slice is built. How many tokens has a sequence in a prefill step, "
            "and in a decode step?",
            (
                Example(
                    _DECODE,
                    [
                        [[5, [1, 2, 3], 0, 3, [7]], [6, [4], 2, 9, [8, 9]]],
                        [[6, [1], 3, 4, [8, 9]], [5, [2], 3, 4, [7, 4]]],
                        [[5, [3], 4, 5, [7, 4]]],
                        [5],
                    ],
                ),
            ),
        ),
        Group(
            "both sides together, and in the running engine",
            1,
            "A worker must end up with the tables that rank 0 has, step after step, through preemptions too; and block "
            "ids that it knows are not sent again.",
            (
                engine_example(
                    "import pickle",
                    "from nanovllm.engine.step_codec import StepDecoder, StepEncoder",
                    "encoder, decoder, run = StepEncoder(), StepDecoder(), llm.ranks.run",
                    "def through_the_channel(slices, is_prefill, sampling, live):",
                    "    message = pickle.loads(pickle.dumps(encoder.encode(slices, is_prefill, live)))",
                    "    return run(decoder.decode(message), is_prefill, sampling, live)",
                    "llm.ranks.run = through_the_channel  # rank 0 runs what a worker would have understood",
                ),
            ),
            numeric=Numeric(
                (("seqs", 1, 4), ("steps", 1, 10)),
                table_traces.random_steps,
                table_traces.TRACE,
                table_traces.understood,
                cases=40,
            ),
        ),
    ),
    bugs=(
        Variant(
            "sends the whole table in every step",
            "change",
            (
                ("keep = known.length if known is not None and is_longer else 0", "keep = 0"),
                ("if keep == len(table):", "if known is not None and is_longer and known.length == len(table):"),
            ),
        ),
        Variant("sends the same table again and again", "change", (("if keep == len(table):", "if False:"),)),
        Variant("never sends a table that grew", "change", (("if keep == len(table):", "if is_longer:"),)),
        Variant("does not notice another list", "change", (("        and known.table is table\n", ""),)),
        Variant(
            "compares the ids instead of asking for the same list",
            "change",
            (("known.table is table", "known.table == table"),),
        ),
        Variant(
            "forgets to remember what it sent",
            "change",
            (
                (
                    "    self._sent[s.seq_id] = _Sent(table, len(table), table[-1])\n",
                    "    self._sent.setdefault(s.seq_id, _Sent(table, len(table), table[-1]))\n",
                ),
            ),
        ),
        Variant("sends the newest block only", "change", (("table[keep:]", "table[-1:]"),)),
        Variant(
            "does not notice that a list became shorter",
            "change",
            ((" and len(table) >= known.length > 0", ""), (" and table[known.length - 1] == known.last", "")),
        ),
        Variant("does not look at the last entry", "change", (("table[known.length - 1] == known.last", "True"),)),
        Variant("drops nobody", "drop_released", (("return gone", "return []"),)),
        Variant(
            "drops the finished, not the preempted",
            "drop_released",
            ((" or live[i].block_table is not sent.table", ""),),
        ),
        Variant(
            "compares the ids of a preempted sequence's tables",
            "drop_released",
            (("live[i].block_table is not sent.table", "live[i].block_table != sent.table"),),
        ),
        Variant(
            "names the dropped ones again and again",
            "drop_released",
            (("        del self._sent[seq_id]\n", "        pass\n"),),
        ),
        Variant("replaces a table that grew", "decode", (("self.tables[seq_id] += new", "self.tables[seq_id] = new"),)),
        Variant("puts every change behind what it has", "decode", (("if keep:", "if seq_id in self.tables:"),)),
        Variant("does not forget the dropped", "decode", (("        del self.tables[seq_id]\n", "        pass\n"),)),
        Variant(
            "takes the end of the chunk for the number of tokens",
            "decode",
            (
                (
                    "message.totals or [start + 1 for start in message.starts]",
                    "[start + len(c) for start, c in zip(message.starts, message.chunks)]",
                ),
            ),
        ),
        Variant(
            "hands out one token a sequence in a prefill too",
            "decode",
            (("message.chunks", "[[token] for token in message.tokens[: len(message.seq_ids)]]"),),
        ),
    ),
    harmless=(
        Variant(
            "asks for the reasons to send all, one by one",
            "change",
            source="""
def change(encoder, s):
    table, known = s.block_table, encoder._sent.get(s.seq_id)
    fresh = known is None or known.table is not table or known.length > len(table)
    if not fresh and table[known.length - 1] != known.last:
        fresh = True
    keep = 0 if fresh else known.length
    new = table[keep:]
    if not new:
        return None
    encoder._sent[s.seq_id] = _Sent(table, keep + len(new), new[-1])
    return s.seq_id, keep, new
""",
        ),
        Variant(
            "takes the gone ones out while it names them",
            "drop_released",
            source="""
def drop_released(encoder, live):
    gone = []
    for seq_id in sorted(encoder._sent):
        if seq_id not in live or live[seq_id].block_table is not encoder._sent[seq_id].table:
            encoder._sent.pop(seq_id)
            gone.append(seq_id)
    return gone
""",
        ),
        Variant(
            "cuts each table to what is kept",
            "decode",
            source="""
def decode(decoder, message):
    for seq_id in message.dropped:
        decoder.tables.pop(seq_id)
    for seq_id, keep, new in message.tables:
        decoder.tables[seq_id] = decoder.tables.get(seq_id, [])[:keep] + new
    slices = []
    for i, seq_id in enumerate(message.seq_ids):
        start = message.starts[i]
        total = start + 1 if message.totals is None else message.totals[i]
        slices.append(ScheduledSlice(seq_id, message.chunks[i], start, total, decoder.tables[seq_id]))
    return slices
""",
        ),
    ),
)
