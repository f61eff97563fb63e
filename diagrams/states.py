"""Life cycles: of a sequence and of a KV block."""

from diagrams.draw import Diagram

SCHEDULER, BLOCKS = "nanovllm.scheduler.scheduler.Scheduler.", "nanovllm.scheduler.block_manager.BlockManager."
STATUS = "nanovllm.scheduler.sequence.SequenceStatus."


def sequence_states() -> Diagram:
    """waiting, running, finished, and what moves a sequence between them."""
    d = Diagram(
        "sequence_states",
        "States of a sequence",
        "A new sequence waits. It runs as soon as its last known token is scheduled; a chunk leaves it at "
        "the head of waiting with its blocks. Running sequences decode. Lack of blocks sends the youngest "
        "back to the head of waiting without blocks. A stop token or a length limit finishes it; abort "
        "finishes it from anywhere.",
        {"rankdir": "LR", "ranksep": "0.25", "nodesep": "0.6"},
        legend=False,
    )
    d.node(
        "new",
        "add_request",
        "refused here if it could never fit",
        code=(SCHEDULER + "check_fits", SCHEDULER + "add"),
        role="outside",
    )
    d.node(
        "waiting",
        "WAITING",
        "no right to compute yet",
        code=(STATUS + "WAITING", SCHEDULER + "waiting"),
        role="request",
    )
    d.node(
        "running", "RUNNING", "has its blocks, decodes", code=(STATUS + "RUNNING", SCHEDULER + "running"), role="gpu"
    )
    d.node(
        "finished",
        "FINISHED",
        "blocks given back",
        code=(STATUS + "FINISHED", SCHEDULER + "postprocess", SCHEDULER + "abort"),
        role="rank",
    )
    d.edge("new", "waiting", "to the tail", "then")
    d.edge("waiting", "running", "its last known token is scheduled|(tokens, seats and blocks allow)", "then")
    d.edge("waiting", "waiting", "a chunk: stays at the head,|keeps its blocks", "then")
    d.edge("running", "waiting", "preempted: to the head,|blocks given back", "then")
    d.edge("running", "running", "decode: one token", "then")
    d.edge("running", "finished", "stop token, length limit,|or abort", "then")
    d.edge("waiting", "finished", "abort", "then")
    return d


def block_life() -> Diagram:
    """Free, owned, published, free but findable, recycled."""
    d = Diagram(
        "block_life",
        "Life of a KV block",
        "A free block is taken for new content, filled by steps, and published once it is full and computed. "
        "Others may share it. When the last owner lets go it is free but still findable, until it is "
        "recycled as the longest free one.",
        {"rankdir": "LR", "ranksep": "0.2", "nodesep": "0.6"},
        legend=False,
    )
    d.node("blank", "free, blank", "reference count 0, no hash", code=BLOCKS + "free_block_ids", role="plain")
    d.node(
        "owned", "owned, filling", "reference count 1", code=(BLOCKS + "_recycle", BLOCKS + "append"), role="request"
    )
    d.node(
        "published",
        "owned, published",
        "full and computed; count 1, 2, ...",
        code=(BLOCKS + "publish", BLOCKS + "hash_to_block_id"),
        role="gpu",
    )
    d.node(
        "findable", "free, still findable", "count 0; hash and tokens kept", code=BLOCKS + "match_prefix", role="rank"
    )
    d.edge("blank", "owned", "allocate or append takes|the longest free one", "then")
    d.edge("owned", "published", "full, after its K and V|were computed", "then")
    d.edge("published", "published", "prefix hit: count + 1", "then")
    d.edge("published", "findable", "deallocate:|count reaches 0", "then")
    d.edge("findable", "published", "prefix hit:|taken back as it is", "then")
    d.edge("findable", "owned", "recycled: entry dropped, new content", "then", constraint="false")
    d.edge("owned", "blank", "deallocate before|it was full", "then")
    return d
