"""The whole engine on one page, in its three layers."""

from diagrams.draw import Diagram

SCHEDULER, ENGINE, KV, MODEL = "nanovllm.scheduler.", "nanovllm.engine.", "nanovllm.paged_kv.", "nanovllm.qwen3."


def architecture() -> Diagram:
    """Request state, rank control, GPU forward."""
    d = Diagram(
        "architecture",
        "The engine in three layers",
        "Request state lives on the CPU of rank 0: sequences, two deques, block ids. Rank control carries "
        "each step to every rank through host shared memory. The forward pass runs on every rank's own "
        "weights and cache; only collectives cross. Sampled ids go back to the scheduler.",
        {"ranksep": "0.42", "nodesep": "0.3"},
    )
    d.node("caller", "your program", "prompts in, text out", code="nanovllm.LLM.generate", role="outside")
    _request_state(d)
    _rank_control(d)
    _forward(d)
    d.edge("caller", "add", "prompt")
    d.edge("schedule", "encode", "Schedule: sequences, prefill or decode")
    d.edge("runner0", "prepare", "slices", lhead="cluster_forward")
    d.edge("decode1", "prepare1", "the same slices")
    d.node(
        "book",
        "sampled ids go back to layer 1",
        "which postprocesses and schedules the next step",
        code=ENGINE + "llm_engine.LLMEngine.book",
        role="request",
    )
    d.edge("sample", "book", "token ids", ltail="cluster_forward")
    return d


def _request_state(d: Diagram) -> None:
    with d.group("state", "1  Request state: CPU, rank 0 only, the authority", "request"):
        d.node(
            "add",
            "a request",
            code=(ENGINE + "llm_engine.LLMEngine.add_request", SCHEDULER + "sequence.Sequence"),
            role="request",
        )
        with d.row():
            d.node(
                "blocks",
                "block ids, reference counts, hashes",
                "numbers only, never K or V",
                code=SCHEDULER + "block_manager.BlockManager",
                role="request",
            )
            d.node("running", "running deque", code=SCHEDULER + "scheduler.Scheduler.running", role="request")
            d.node("waiting", "waiting deque", code=SCHEDULER + "scheduler.Scheduler.waiting", role="request")
        with d.row():
            d.node(
                "post",
                "append, publish, free or finish",
                code=SCHEDULER + "scheduler.Scheduler.postprocess",
                role="request",
            )
            d.node(
                "schedule", "which request runs next", code=SCHEDULER + "scheduler.Scheduler.schedule", role="request"
            )
    d.edge("add", "waiting")
    d.edge("blocks", "post", dir="both")
    d.edge("blocks", "schedule", dir="both")
    d.edge("running", "schedule")
    d.edge("waiting", "schedule")


def _rank_control(d: Diagram) -> None:
    with d.group("control", "2  Rank control: host shared memory and pipes, no tensors", "rank"):
        with d.row():
            d.node("encode", "rank 0: only what changed", code=ENGINE + "step_codec.StepEncoder.encode", role="rank")
            d.node(
                "post_call", "one call to every worker", code=ENGINE + "control_channel.ChannelHost.post", role="rank"
            )
            d.node("decode1", "rank 1..N-1: rebuilt", code=ENGINE + "step_codec.StepDecoder.decode", role="rank")
        d.node("runner0", "every rank runs the same step", code=KV + "model_runner.ModelRunner.run", role="rank")
    d.edge("encode", "post_call")
    d.edge("post_call", "decode1", "pickled message", "message")
    d.edge("encode", "runner0", "rank 0 runs it itself")


def _forward(d: Diagram) -> None:
    with d.group("forward", "3  Forward pass: each rank's device", "gpu"):
        with d.group("rank0", "rank 0", "gpu"):
            d.node("prepare", "ids, positions, slots, block tables", code=KV + "batch.prepare", role="gpu")
            d.node("model", "model shard", code=MODEL + "model.Qwen3ForCausalLM.forward", role="gpu")
            d.node("sample", "sample", "rank 0 has the whole logits", code=MODEL + "sampler.Sampler", role="gpu")
            d.node("cache", "KV cache shard", code=KV + "cache.KVCache", role="gpu")
        with d.group("rank1", "rank 1..N-1", "gpu"):
            d.node("prepare1", "the same, from the message", code=KV + "batch.prepare", role="gpu")
            d.node("model1", "model shard", code=MODEL + "model.Qwen3ForCausalLM.forward", role="gpu")
            d.node("cache1", "KV cache shard", code=KV + "cache.KVCache", role="gpu")
    d.edge("prepare", "model", kind="data")
    d.edge("prepare1", "model1", kind="data")
    d.edge("model", "cache", "write, read", "data", dir="both")
    d.edge("model1", "cache1", "write, read", "data", dir="both")
    d.edge("model", "sample", "logits", "data")
    d.edge("model", "model1", "all-reduce, gather", "comm", constraint="false")
