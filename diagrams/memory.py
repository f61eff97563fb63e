"""Where K and V live: the prefix hash chain, the slot mapping, the memory map. All numbers come from the "
"engine's code.
"""

from itertools import pairwise

import torch

from diagrams.adapt import MUTED
from diagrams.draw import SMALL, Diagram, cell, line, mono
from nanovllm.paged_kv.batch import prepare_prefill
from nanovllm.paged_kv.cache import KVCacheSpec
from nanovllm.scheduler import BlockManager, Sequence

KV, BLOCKS = "nanovllm.paged_kv.", "nanovllm.scheduler.block_manager."
PROMPT = ["the", "cat", "sat", "on", "a", "red", "mat", "and", "then", "it", "slept"]
OTHER = [*PROMPT[:8], "purred", "at", "me"]


def prefix_chain() -> Diagram:
    """Two sequences with a common start, their blocks and the hashes that the block manager computes for them."""
    manager = BlockManager(num_blocks=8, block_size=4)
    words = [*dict.fromkeys(PROMPT + OTHER)]
    first, second = (Sequence(i, [words.index(w) for w in p], block_size=4) for i, p in enumerate((PROMPT, OTHER)))
    hashes = [f"{manager.block_hash(first, i):016x}"[:6] for i in range(2)]
    for seq in (first, second):
        manager.allocate(seq)
        computed, seq.num_cached_tokens = seq.num_cached_tokens, seq.num_tokens
        manager.publish(seq, computed)
    d = Diagram(
        "prefix_chain",
        "Prefix hash chain: a block's hash covers everything before it",
        "Two sequences of 11 tokens in blocks of 4 begin with the same 8 tokens. Both find the same two "
        "published blocks, since each block's hash is made of the hash before it and its own tokens. Their "
        "third blocks are not full: they have no hash and are not shared.",
        {"rankdir": "LR", "ranksep": "0.5", "nodesep": "0.45"},
        legend=False,
    )
    for index in range(2):
        block = first.block_table[index]
        head = cell(f"block {block}", bold=True, span=4, plain=True)
        tokens = [cell(words[t], 3) for t in first.block(index)]
        count = f"{manager.blocks[block].ref_count} owners"
        foot = f'<TD BORDER="0" COLSPAN="4">{mono(f"hash {hashes[index]}…")}</TD>'
        note = cell(count, span=4, plain=True)
        d.table(f"b{index}", line(head) + line(*tokens) + f"<TR>{foot}</TR>" + line(note), code=BLOCKS + "Block")
    for seq, hue in ((first, 0), (second, 1)):
        block = seq.block_table[2]
        rest = [cell(words[t], hue) for t in seq.block(2)] + [cell("")]
        head = cell(f"block {block}: request {seq.seq_id}", bold=True, span=4, plain=True)
        note = cell("not full: no hash", span=4, plain=True)
        d.table(f"r{seq.seq_id}", line(head) + line(*rest) + line(note))
    d.node("hash0", "hash of block 0", "nothing before, and 4 tokens", code=BLOCKS + "chained_hash", role="gpu")
    d.node("hash1", "hash of block 1", f"{hashes[0]}… and 4 tokens", code=BLOCKS + "chained_hash", role="gpu")
    d.node(
        "check",
        "the tokens are compared too",
        "equal hashes alone are not trusted",
        code=BLOCKS + "BlockManager.match_prefix",
        role="rank",
    )
    chain = ("hash0", "b0", "hash1", "b1")
    for tail, head in pairwise(chain):
        d.edge(tail, head, kind="then", weight="20")
    d.edge("b1", "r0", "request 0", "then")
    d.edge("b1", "r1", "request 1", "then")
    d.edge("check", "b1", kind="link")
    return d


def slot_mapping() -> Diagram:
    """From a token's position to its slot, for the step that prefills a prompt of seven tokens."""
    table, tokens, size = [5, 2], PROMPT[:7], 4
    seq = Sequence(0, list(range(len(tokens))), block_size=size)
    seq.block_table, seq.num_scheduled_tokens = table, len(tokens)
    slots = prepare_prefill([seq.scheduled_slice()], size).slot_mapping.tolist()
    d = Diagram(
        "slot_mapping",
        "Slot mapping: slot = block_table[position // block_size] x block_size + position % block_size",
        "A prompt of 7 tokens in blocks of 4 owns blocks 5 and 2, in this order. Positions 0 to 3 go to "
        "slots 20 to 23, positions 4 to 6 to slots 8 to 10. The pool is the same size for every layer; the "
        "numbers hold in all of them.",
        {"ranksep": "0.9", "splines": "line"},
        legend=False,
    )

    def cells(values: list[object], hue: int | None = 0, ports: str = "") -> list[str]:
        return [cell(v, hue, port=f"{ports}{i}" if ports else "", wide=36) for i, v in enumerate(values)]

    rows = line(cell("token", plain=True), *cells(list(tokens)))
    rows += line(cell("position", plain=True), *cells(list(range(7)), None))
    rows += line(cell("logical block", plain=True), *cells([p // size for p in range(7)], None))
    rows += line(cell("block_table[...]", plain=True), *cells([table[p // size] for p in range(7)], None))
    rows += line(cell("slot_mapping", plain=True, bold=True), *cells(list(slots), 0, "t"))
    d.table("tokens", rows, code=(KV + "batch.slots_of", KV + "batch.prepare_prefill"))
    filled = dict(zip(slots, tokens, strict=True))
    numbers, values = [], []
    for block in range(6):
        for offset in range(size):
            slot = block * size + offset
            hue = 0 if slot in filled else None
            values.append(cell(filled.get(slot, ""), hue, port=f"s{slot}", wide=32))
            numbers.append(f'<TD BORDER="0"><FONT POINT-SIZE="{SMALL}" COLOR="{MUTED}">{slot}</FONT></TD>')
    heads = [cell(f"block {b}", span=size, bold=b in table, plain=True) for b in range(6)]
    d.table("pool", line(*values) + f"<TR>{''.join(numbers)}</TR>" + line(*heads), code=KV + "cache.KVCache")
    for i, slot in enumerate(slots):
        d.edge(f"tokens:t{i}:s", f"pool:s{slot}:n", kind="data", penwidth="1.2", weight="0")
    d.edge("tokens:t3:s", "pool:s12:n", kind="data", style="invis", weight="100")
    return d


def memory_map() -> Diagram:
    """From the card to one key vector."""
    spec = KVCacheSpec(num_layers=28, num_kv_heads=8, head_dim=128, block_size=256, dtype=torch.bfloat16)
    d = Diagram(
        "memory_map",
        "Memory map: from the card to one key (sizes of Qwen3-0.6B, bf16)",
        "The card holds weights, what a step needs at its worst, CUDA graphs and a safety margin; the rest "
        f"of the share the engine may use is the KV pool. A block holds K and V of {spec.block_size} tokens "
        f"in all {spec.num_layers} layers: {spec.bytes_per_block:,} bytes. A slot holds "
        f"{spec.bytes_per_token:,} bytes of one token, over all layers.",
        {"rankdir": "LR", "ranksep": "0.3", "nodesep": "0.3"},
        legend=False,
    )
    parts = [
        ("outside the engine's share", "gpu_memory_utilization 0.9", None),
        ("weights and buffers", "MemoryBudget.held", 1),
        ("peak of a step", "MemoryBudget.peak", 4),
        ("CUDA graphs", "MemoryBudget.graphs", 5),
        ("KV pool", "MemoryBudget.for_cache", 2),
    ]
    rows = "".join(
        line(cell(name, hue, bold=True, note=words, port=name.split()[0], tall=22 if hue == 2 else 6))
        for name, words, hue in parts
    )
    head = line(cell("the card's memory", bold=True, plain=True))
    fields = ("held", "peak", "graphs", "for_cache")
    d.table("card", head + rows, code=tuple(KV + f"memory.MemoryBudget.{f}" for f in fields))
    blocks = [f"block {i}" for i in range(4)] + ["…", "block N-1"]
    rows = line(cell("KVCache.tensor", bold=True, plain=True))
    rows += line(cell("[2, layers, blocks,", plain=True, tall=1)) + line(
        cell("block_size, heads, head_dim]", plain=True)
    )
    rows += "".join(line(cell(b, 2, port=f"b{i}")) for i, b in enumerate(blocks))
    d.table("pool", rows, code=KV + "cache.KVCache")
    d.table("block", _layers(spec), code=KV + "cache.KVCacheSpec.bytes_per_block")
    d.table("slot", _slot(spec), code=KV + "cache.KVCacheSpec.bytes_per_token")
    d.edge("card:KV:e", "pool:b0:w", kind="data")
    d.edge("pool:b2:e", "block:top:w", "one block", "data")
    d.edge("block:last:e", "slot:top:w", "one slot", "data")
    return d


def _layers(spec: KVCacheSpec) -> str:
    mib = spec.bytes_per_block / 2**20
    rows = line(cell(f"one block: {mib:g} MiB", bold=True, plain=True, span=5, port="top"))
    rows += line(cell("", plain=True), *(cell(f"slot {s}", plain=True) for s in ("0", "1", "…", "255")))
    for name in ("layer 0 K", "layer 0 V", "…", f"layer {spec.num_layers - 1} V"):
        marks = [cell("  ", 2, port="last" if name == "layer 0 V" and i == 3 else "") for i in range(4)]
        rows += line(cell(name, plain=True), *(marks if name != "…" else [cell("…", plain=True)] * 4))
    rows += line(cell("each of the 56 parts lies elsewhere in the pool", plain=True, span=5))
    return rows


def _slot(spec: KVCacheSpec) -> str:
    one = spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize
    rows = line(cell(f"one token: {spec.bytes_per_token:,} B", bold=True, plain=True, port="top"))
    rows += line(cell(f"{spec.num_kv_heads} heads x {spec.head_dim} x {spec.dtype.itemsize} B = {one:,} B", 2))
    rows += line(cell(f"x 2 (K and V) x {spec.num_layers} layers", plain=True))
    return rows
