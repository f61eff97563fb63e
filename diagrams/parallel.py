"""Several ranks: one layer's tensors, the control channel, the processes beside those of vLLM V1."""

from itertools import pairwise

from diagrams.draw import Diagram
from nanovllm.engine.control_channel import DOWN_BYTES, UP_BYTES

ENGINE, MODEL, SERVE = "nanovllm.engine.", "nanovllm.qwen3.", "nanovllm.serve."
VLLM = "https://docs.vllm.ai/en/latest/design/arch_overview/"


def tensor_parallel_layer() -> Diagram:
    """A decoder layer on two ranks."""
    d = Diagram(
        "tensor_parallel_layer",
        "One decoder layer on two ranks",
        "Every rank holds the whole hidden states. QKV and gate/up are split by output: each rank computes "
        "its own heads and its own half of the intermediate size, without talking. o_proj and down_proj are "
        "split by input: each rank has a partial sum, and an all-reduce makes it whole. Two all-reduces a "
        "layer.",
        {"nodesep": "0.85", "ranksep": "0.3"},
    )
    parts = (
        ("norm1", "RMSNorm, residual", "norm.RMSNorm.add_and_norm", "[T, hidden] on both"),
        ("qkv", "QKV, split by heads", "linear.QKVParallelLinear", "[T, heads/2 x head_dim]"),
        ("attend", "attention over its own KV heads", "model.Qwen3Attention.forward", "cache shard: KV heads / 2"),
        ("o", "o_proj, split by input", "linear.RowParallelLinear", "[T, hidden], a partial sum"),
        ("norm2", "RMSNorm, residual", "norm.RMSNorm.add_and_norm", "[T, hidden] on both"),
        ("up", "gate and up, split by output", "linear.MergedColumnParallelLinear", "[T, intermediate / 2]"),
        ("down", "down_proj, split by input", "linear.RowParallelLinear", "[T, hidden], a partial sum"),
    )
    for rank in range(2):
        with d.group(f"rank{rank}", f"rank {rank}", "gpu"):
            for key, title, code, shape in parts:
                d.node(f"{key}{rank}", title, shape, code=MODEL + code, role="comm" if key in ("o", "down") else "gpu")
        keys = [p[0] for p in parts]
        for tail, head in pairwise(keys):
            d.edge(f"{tail}{rank}", f"{head}{rank}", kind="data")
    for key in ("o", "down"):
        d.edge(f"{key}0", f"{key}1", "all-reduce|\u2003\u2003[T, hidden]\u2003\u2003", "comm", constraint="false")
    return d


def control_channel() -> Diagram:
    """How a call reaches a worker and its result comes back."""
    d = Diagram(
        "control_channel",
        "Control channel: a segment of host shared memory, and pipes that say when",
        "Rank 0 writes a pickled call into the area called down and sends one byte through each worker's "
        "pipe. Workers read the area, answer through their own up areas, and write a heartbeat and a count "
        "of collectives into their status. A pipe ends with EOF when the process at its other end is gone.",
        {"rankdir": "LR", "ranksep": "0.7", "nodesep": "0.35"},
    )
    channel = ENGINE + "control_channel."
    with d.group("rank0", "rank 0: the main process", "request"):
        d.node(
            "encode", "what changed since the last step", code=ENGINE + "step_codec.StepEncoder.encode", role="request"
        )
        d.node("post", "post", "one call to all workers", code=channel + "ChannelHost.post", role="request")
        d.node("answer", "answer", "one result from each", code=channel + "ChannelHost.answer", role="request")
        d.node("watch", "supervisor thread", "deaths, deadlines", code=ENGINE + "supervisor.Supervisor", role="request")
    with d.group("segment", "segment in host shared memory", "rank"):
        d.node(
            "down",
            f"down: {DOWN_BYTES // 2**20} MiB",
            "header of 32 B, then a chunk",
            code=channel + "Layout.down",
            role="rank",
        )
        d.node(
            "pipe", "pipe to each worker", "c: a chunk is there, t: taken", code=ENGINE + "peer.Peer", role="outside"
        )
        d.node("up", f"up: {UP_BYTES // 2**10} KiB each", "result or error", code=channel + "Layout.up", role="rank")
        d.node(
            "status", "status: 16 B each", "heartbeat, collectives entered", code=channel + "Layout.status", role="rank"
        )
    with d.group("worker", "rank 1..N-1: spawned processes", "gpu"):
        d.node(
            "receive",
            "receive, rebuild the slices",
            code=(channel + "ChannelClient.receive", ENGINE + "step_codec.StepDecoder"),
            role="gpu",
        )
        d.node(
            "run",
            "run the step",
            "tensors travel in NCCL or gloo, not here",
            code=ENGINE + "rank_executor.RankExecutor.run_step",
            role="gpu",
        )
        d.node("send", "send", code=channel + "ChannelClient.send", role="gpu")
        d.node("beat", "beat", "a thread that also watches rank 0", code=channel + "ChannelClient.beat", role="gpu")
    d.edge("encode", "post", "StepMessage", constraint="false")
    d.edge("post", "down", "pickled (method, arguments)", "message")
    d.edge("down", "receive", kind="message")
    d.edge("post", "pipe", kind="message")
    d.edge("pipe", "receive", kind="message")
    d.edge("receive", "run", constraint="false")
    d.edge("run", "send", constraint="false")
    d.edge("up", "send", kind="message", dir="back")
    d.edge("answer", "up", kind="message", dir="back")
    d.edge("status", "beat", kind="message", dir="back")
    d.edge("watch", "status", kind="message", dir="back")
    return d


def topology() -> Diagram:
    """Processes here and in vLLM V1."""
    d = Diagram(
        "topology",
        "Processes: this engine beside vLLM V1",
        "Here one process owns requests, scheduling and rank 0's model; the server is a thread away, workers "
        "are spawned for more ranks. In vLLM V1 the API server, the engine core and one worker a GPU are "
        "processes of their own, with a coordinator when there are several engine cores.",
        {"nodesep": "0.3", "ranksep": "0.55"},
    )
    with d.group("ours", "this engine, tensor_parallel_size N", "request"):
        d.node("client", "clients", "HTTP, server-sent events", role="outside")
        with d.group("main", "main process", "request"):
            d.node(
                "app",
                "HTTP server: asyncio",
                "optional; not in nano-vLLM",
                code=SERVE + "app.create_app",
                role="request",
            )
            d.node("loop", "thread: admission loop", code=SERVE + "engine_loop.EngineLoop", role="request")
            d.node("engine", "engine: scheduler, blocks", code=ENGINE + "llm_engine.LLMEngine", role="request")
            d.node("rank0", "rank 0: GPU 0", code=ENGINE + "rank_executor.RankExecutor", role="gpu")
        d.node("rankn", "rank 1..N-1", "a process each, GPU 1..N-1", code=ENGINE + "worker.worker_main", role="gpu")
    with d.group("vllm", "vLLM V1", "other"):
        d.node("client2", "clients", "HTTP, server-sent events", role="outside", source=VLLM)
        d.node("api", "API server process", "tokenises, streams; several are possible", role="request", source=VLLM)
        d.node("coordinator", "DP coordinator process", "only with data parallelism", role="rank", source=VLLM)
        d.node("core", "engine core process", "scheduler, KV cache manager; one a DP rank", role="request", source=VLLM)
        d.node("worker", "GPU worker processes", "one a GPU: TP x PP of them a core", role="gpu", source=VLLM)
    d.edge("client", "app", "HTTP", "message")
    d.edge("app", "loop", "queue")
    d.edge("loop", "engine", "between two steps")
    d.edge("engine", "rank0")
    d.edge("engine", "rankn", "shared memory|and pipes", "message")
    d.edge("rank0", "rankn", "NCCL or gloo", "comm", constraint="false")
    d.edge("client2", "api", "HTTP", "message")
    d.edge("api", "core", "ZMQ", "message")
    d.edge("coordinator", "core", kind="message")
    d.edge("api", "coordinator", kind="message", dir="both", constraint="false")
    d.edge("core", "worker", kind="message")
    d.edge("worker", "worker", "NCCL", "comm")
    return d
