"""Start-up, and one step of each kind."""

from itertools import pairwise

from diagrams.draw import Diagram

SCHEDULER, ENGINE, KV, MODEL = "nanovllm.scheduler.", "nanovllm.engine.", "nanovllm.paged_kv.", "nanovllm.qwen3."


def startup() -> Diagram:
    """What happens before the first request, in order."""
    d = Diagram(
        "startup",
        "Start-up: everything that happens before the first request",
        "Limits are checked, a plan is made and the tokenizer read while nothing has been spawned or "
        "allocated. Then every rank builds its model shard and loads its weights, the ranks connect, each "
        "says how many KV blocks it can afford, the smallest number wins, pools are opened and graphs "
        "recorded. The scheduler comes last: it needs that number.",
        {"nodesep": "1.0", "ranksep": "0.3"},
    )
    with d.group("cheap", "Refused here, nothing has been taken yet", "request"):
        d.node("config", "limits checked", code="nanovllm.config.EngineConfig.from_limits", role="request")
        d.node("folder", "checkpoint found", code=ENGINE + "checkpoint.resolve_checkpoint", role="request")
        d.node("plan", "plan: device, dtype, backend, lengths", code=ENGINE + "startup.make_plan", role="request")
        d.node("tokenizer", "tokenizer", code=ENGINE + "checkpoint.load_tokenizer", role="request")
    with d.group("ranks", "The same on every rank, together", "gpu"):
        d.node("spawn", "ranks 1..N-1 spawned", code=ENGINE + "ranks.RankGroup", role="rank")
        d.node("build", "model shard, its weights", code=ENGINE + "startup.build_runner", role="gpu")
        d.node("connect", "ranks meet: NCCL or gloo", code=MODEL + "distributed.DistributedGroup.connect", role="comm")
        d.node(
            "afford",
            "KV blocks this rank can afford",
            "on a GPU: warm up at the worst case, measure",
            code=(ENGINE + "startup.affordable_blocks", KV + "model_runner.ModelRunner.warm_up"),
            role="gpu",
        )
        d.node("pool", "KV pool", code=KV + "model_runner.ModelRunner.allocate", role="gpu")
        d.node(
            "graphs",
            "CUDA graphs of decode",
            "GPU only, not with enforce_eager",
            code=KV + "model_runner.ModelRunner.capture_graphs",
            role="gpu",
        )
    with d.group("last", "Rank 0 alone", "request"):
        d.node("manager", "block manager", code=SCHEDULER + "block_manager.BlockManager", role="request")
        d.node("scheduler", "scheduler: ready", code=SCHEDULER + "scheduler.Scheduler", role="request")
    chain = ("config", "folder", "plan", "tokenizer")
    for tail, head in pairwise(chain):
        d.edge(tail, head, kind="then")
    d.edge("config", "spawn", kind="then", ltail="cluster_cheap", lhead="cluster_ranks", constraint="false")
    d.edge("spawn", "build", "plan", "message")
    d.edge("build", "connect", kind="then")
    d.edge("connect", "afford", kind="then")
    d.edge("afford", "pool", "minimum over ranks", "then")
    d.edge("pool", "graphs", kind="then")
    d.edge(
        "spawn",
        "manager",
        "\u2003\u2003number|\u2003\u2003of blocks",
        "then",
        ltail="cluster_ranks",
        lhead="cluster_last",
        constraint="false",
    )
    d.edge("manager", "scheduler", kind="then")
    return d


# A box of a step: key, title, lines of words, and the dotted names of its code.
Box = tuple[str, ...]

SLICES: Box = (
    "slices",
    "what the step needs of each sequence",
    "token ids, start, block table",
    SCHEDULER + "sequence.Sequence.scheduled_slice",
)
BOOKED = (SCHEDULER + "scheduler.Scheduler.postprocess", SCHEDULER + "block_manager.BlockManager.publish")
FORWARD, STORE = MODEL + "model.Qwen3ForCausalLM.forward", KV + "attention.AttentionBackend.store"
LOGITS = ("[B, vocabulary], on rank 0", MODEL + "embedding.ParallelLMHead.logits")
SAMPLE: Box = ("sample", "sample", "rank 0", MODEL + "sampler.Sampler")

PREFILL_HOST: tuple[Box, ...] = (
    (
        "schedule",
        "choose",
        "from the head of waiting, while tokens, seats and blocks last",
        SCHEDULER + "scheduler.Scheduler._schedule_prefill",
    ),
    (
        "blocks",
        "reserve",
        "blocks for the prompt, prefix hits first",
        SCHEDULER + "block_manager.BlockManager.allocate",
    ),
    SLICES,
    ("post", "book", "chunk: count it | whole prompt: append the first token", *BOOKED),
)
PREFILL_DEVICE: tuple[Box, ...] = (
    (
        "prepare",
        "pack",
        "input_ids [T], positions [T], slot_mapping [T], cu_seqlens [B+1]",
        KV + "batch.prepare_prefill",
    ),
    ("forward", "embedding, layers", "hidden states [T, hidden]", FORWARD),
    (
        "attend",
        "store K, V; attend",
        "variable length; with a block table if a prefix is cached",
        STORE,
        KV + "attention.AttentionBackend.prefill",
    ),
    ("logits", "logits of each last row", *LOGITS),
    SAMPLE,
)
DECODE_HOST: tuple[Box, ...] = (
    (
        "schedule",
        "choose",
        "every running sequence, one token each;\na missing block preempts the youngest",
        SCHEDULER + "scheduler.Scheduler._schedule_decode",
    ),
    ("blocks", "reserve", "a block, if the new token opens one", SCHEDULER + "block_manager.BlockManager.append"),
    SLICES,
    ("post", "book", "append a token; free the blocks of finished ones", *BOOKED),
)
DECODE_DEVICE: tuple[Box, ...] = (
    (
        "prepare",
        "one row a sequence",
        "input_ids [B], slot_mapping [B], context_lens [B], block_tables",
        KV + "batch.prepare_decode",
    ),
    (
        "forward",
        "embedding, layers",
        "a CUDA graph of the next batch size, if recorded",
        FORWARD,
        KV + "cuda_graphs.DecodeGraphs.run_body",
    ),
    (
        "attend",
        "store K, V; attend",
        "paged: all keys of a sequence through its block table",
        STORE,
        KV + "attention.AttentionBackend.decode",
    ),
    ("logits", "logits of every row", *LOGITS),
    SAMPLE,
)


def _boxes(d: Diagram, key: str, title: str, role: str, boxes: tuple[Box, ...]) -> None:
    with d.group(key, title, role):
        for name, what, words, *code in boxes:
            d.node(name, what, *words.split("\n"), code=tuple(code), role=role)


def _step(name: str, title: str, words: str, host: tuple[Box, ...], device: tuple[Box, ...]) -> Diagram:
    """The CPU beside the device, with the arrows that every step has."""
    d = Diagram(name, title, words, {"nodesep": "0.8", "ranksep": "0.3", "newrank": "true"})
    _boxes(d, "host", "CPU, rank 0", "request", host)
    d.edge("schedule", "blocks")
    d.edge("blocks", "slices")
    _boxes(d, "device", "every rank", "gpu", device)
    d.edge("prepare", "forward", kind="data")
    d.edge("forward", "attend", "each layer", "data", dir="both")
    d.edge("forward", "logits", kind="data")
    d.edge("logits", "sample", kind="data")
    d.edge("slices", "prepare", "control|channel", "message", minlen="0")
    d.edge("slices", "post", kind="control", style="invis")
    d.edge("post", "sample", "token|ids", minlen="0", dir="back")
    return d


def prefill_step() -> Diagram:
    """One step that computes prompts."""
    return _step(
        "prefill_step",
        "One prefill step: many tokens a sequence",
        "Waiting sequences are chosen within the token, sequence and block budgets. Their uncached tokens "
        "are packed one behind the other, T in all. Only a prompt whose last token is in the step gets a "
        "first token.",
        PREFILL_HOST,
        PREFILL_DEVICE,
    )


def decode_step() -> Diagram:
    """One step that computes the next token of each running sequence."""
    return _step(
        "decode_step",
        "One decode step: one token a sequence",
        "Every running sequence feeds in the token sampled last, one row each, B in all. Its key and value "
        "go to one slot; attention reads all its keys through the block table. Every row gives a token.",
        DECODE_HOST,
        DECODE_DEVICE,
    )
