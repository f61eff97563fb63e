"""The one registry of seams: where a learner's function can stand instead of the engine's own.

The engine knows nothing of this list. A test compares each signature with the engine's.
"""

from nanovllm.course.exercise import Seam

_SEQUENCE = "nanovllm.scheduler.sequence:Sequence"
_BLOCKS = "nanovllm.scheduler.block_manager:BlockManager"
_SCHEDULER = "nanovllm.scheduler.scheduler:Scheduler"

NUM_BLOCKS = Seam(_SEQUENCE, "num_blocks", "(self)", is_property=True)
LAST_BLOCK_NUM_TOKENS = Seam(_SEQUENCE, "last_block_num_tokens", "(self)", is_property=True)
BLOCK = Seam(_SEQUENCE, "block", "(self, index)")

CHAINED_HASH = Seam(
    "nanovllm.scheduler.block_manager",
    "chained_hash",
    "(previous, token_ids)",
    defaults_of=(
        "nanovllm.scheduler.block_manager:BlockManager.__init__",
        "nanovllm.course.oracle.run:scheduler_factory",
        "nanovllm.course.oracle.run:colliding_hash",
    ),
)

MATCH_PREFIX = Seam(_BLOCKS, "match_prefix", "(self, seq)")
ALLOCATE = Seam(_BLOCKS, "allocate", "(self, seq, plan=None)")
TAKE = Seam(_BLOCKS, "_take", "(self, block_id)")
DEALLOCATE = Seam(_BLOCKS, "deallocate", "(self, seq)")
CAN_APPEND = Seam(_BLOCKS, "can_append", "(self, seq)")
APPEND = Seam(_BLOCKS, "append", "(self, seq, num_ahead=0)")

SCHEDULE_PREFILL = Seam(_SCHEDULER, "_schedule_prefill", "(self)")
SCHEDULE_DECODE = Seam(_SCHEDULER, "_schedule_decode", "(self)")
PREEMPT = Seam(_SCHEDULER, "_preempt", "(self, seq, by)")
POSTPROCESS = Seam(_SCHEDULER, "postprocess", "(self, seqs, token_ids, is_prefill)")
FINISH_REASON = Seam(_SCHEDULER, "_finish_reason", "(self, seq, token_id)")

_CACHE_SPEC = "nanovllm.paged_kv.cache:KVCacheSpec"
_BATCH = "nanovllm.paged_kv.batch"
_TORCH_BACKEND = "nanovllm.paged_kv.backends.torch_backend"
_TRITON_BACKEND = "nanovllm.paged_kv.backends.triton_backend"
BYTES_PER_TOKEN = Seam(_CACHE_SPEC, "bytes_per_token", "(self)", is_property=True)
BLOCKS_IN = Seam(_CACHE_SPEC, "blocks_in", "(self, num_bytes)")
FOR_CACHE = Seam("nanovllm.paged_kv.memory:MemoryBudget", "for_cache", "(self)", is_property=True)
PAD_BLOCK_TABLES = Seam(_BATCH, "pad_block_tables", "(tables, widths)")
SLOTS_OF = Seam(_BATCH, "slots_of", "(block_tables, rows, positions, block_size)")
PREPARE_DECODE = Seam(_BATCH, "prepare_decode", "(slices, block_size)")
PREPARE_PREFILL = Seam(_BATCH, "prepare_prefill", "(slices, block_size)")
STORE_KV = Seam(_TRITON_BACKEND, "store_kv", "(k, v, k_cache, v_cache, slot_mapping)")
DECODE = Seam(f"{_TORCH_BACKEND}:TorchBackend", "decode", "(self, q, k_cache, v_cache, context, scale)")
CAUSAL_ATTENTION = Seam(_TORCH_BACKEND, "causal_attention", "(q, k, v, scale)")
PREFILL = Seam(f"{_TORCH_BACKEND}:TorchBackend", "prefill", "(self, q, k, v, k_cache, v_cache, context, scale)")
PAGED_DECODE = Seam(
    _TRITON_BACKEND,
    "paged_decode",
    "(q, k_cache, v_cache, block_tables, context_lens, scale, num_splits=None, order=None)",
)

_ENGINE = "nanovllm.engine.llm_engine:LLMEngine"
STEP = Seam(_ENGINE, "step", "(self)")
RUN = Seam(_ENGINE, "_run", "(self, schedule)")
GENERATE = Seam("nanovllm.engine.llm:LLM", "generate", "(self, prompts, sampling_params=None, use_tqdm=True)")
_CODEC = "nanovllm.engine.step_codec"
CHANGE = Seam(f"{_CODEC}:StepEncoder", "_change", "(self, s)")
DROP_RELEASED = Seam(f"{_CODEC}:StepEncoder", "_drop_released", "(self, live)")
DECODE_MESSAGE = Seam(f"{_CODEC}:StepDecoder", "decode", "(self, message)")

_OPS = "nanovllm.qwen3.ops:TorchOps"
_QKV = "nanovllm.qwen3.linear:QKVParallelLinear"
_ROW_PARALLEL = "nanovllm.qwen3.linear:RowParallelLinear"
_SAMPLER = "nanovllm.qwen3.sampler"

RMS_NORM = Seam(_OPS, "rms_norm", "(self, x, weight, eps)")
ADD_RMS_NORM = Seam(_OPS, "add_rms_norm", "(self, x, residual, weight, eps)")
INVERSE_FREQUENCIES = Seam("nanovllm.qwen3.rotary", "inverse_frequencies", "(head_dim, theta)")
APPLY_ROTARY = Seam("nanovllm.qwen3.rotary", "apply_rotary", "(x, cos, sin)")
ATTEND = Seam(_OPS, "attend", "(self, qkv, q_weight, k_weight, eps, angles, attention, context)")
GROUPED_ATTENTION = Seam("nanovllm.course.part3.plain_backend", "grouped_attention", "(q, k, v, scale)")
SILU_AND_MUL = Seam(_OPS, "silu_and_mul", "(self, gate_up)")
MLP_FORWARD = Seam("nanovllm.qwen3.model:Qwen3MLP", "forward", "(self, x)")
KV_HEAD_RANGE = Seam("nanovllm.qwen3.parallel", "kv_head_range", "(num_kv_heads, group)")
LOAD_QKV = Seam(_QKV, "load", "(self, reader, prefixes)")
LOAD_COLUMNS = Seam(_ROW_PARALLEL, "load", "(self, reader, prefix)")
ROW_PARALLEL_FORWARD = Seam(_ROW_PARALLEL, "forward", "(self, x)")
EMBED = Seam("nanovllm.qwen3.embedding:VocabParallelEmbedding", "forward", "(self, token_ids)")
GATHER_LOGITS = Seam("nanovllm.qwen3.embedding:ParallelLMHead", "logits", "(self, hidden)")
KEEP_TOP = Seam(_SAMPLER, "keep_top", "(logits, top_k, top_p)")
RACE = Seam(f"{_SAMPLER}:Sampler", "race", "(self, logits, temperature, keys)")

_METRICS = "nanovllm.engine.metrics:RequestMetrics"

GRAPH_BATCH_SIZES = Seam("nanovllm.paged_kv.cuda_graphs", "graph_batch_sizes", "(max_num_seqs)")
PADDED_SIZE = Seam("nanovllm.paged_kv.cuda_graphs:DecodeGraphs", "padded_size", "(self, num_seqs)")
WRITE_PADDED = Seam("nanovllm.paged_kv.cuda_graphs", "write_padded", "(host, batch, size)")
TTFT = Seam(_METRICS, "ttft", "(self)", is_property=True)
TPOT = Seam(_METRICS, "tpot", "(self)", is_property=True)
PERCENTILE = Seam("nanovllm.bench.stats", "percentile", "(values, share)")
MEETS = Seam("nanovllm.serve.load_report:RequestRecord", "meets", "(self, limits)")
GOODPUT = Seam("nanovllm.serve.load_report:LoadReport", "goodput", "(self)", is_property=True)
NEXT_BATCH = Seam("nanovllm.serve.policy:BoundedPrefill", "__call__", "(self, scheduler)")
GIVE_UP_HALF_COMPUTED = Seam("nanovllm.serve.policy", "_give_up_half_computed", "(scheduler)")

SEAMS = {
    seam.name: seam
    for seam in (
        NUM_BLOCKS,
        LAST_BLOCK_NUM_TOKENS,
        BLOCK,
        CHAINED_HASH,
        MATCH_PREFIX,
        ALLOCATE,
        TAKE,
        DEALLOCATE,
        CAN_APPEND,
        APPEND,
        SCHEDULE_PREFILL,
        SCHEDULE_DECODE,
        PREEMPT,
        POSTPROCESS,
        FINISH_REASON,
        BYTES_PER_TOKEN,
        BLOCKS_IN,
        FOR_CACHE,
        PAD_BLOCK_TABLES,
        SLOTS_OF,
        PREPARE_DECODE,
        PREPARE_PREFILL,
        STORE_KV,
        DECODE,
        CAUSAL_ATTENTION,
        PREFILL,
        PAGED_DECODE,
        STEP,
        RUN,
        GENERATE,
        CHANGE,
        DROP_RELEASED,
        DECODE_MESSAGE,
        RMS_NORM,
        ADD_RMS_NORM,
        INVERSE_FREQUENCIES,
        APPLY_ROTARY,
        ATTEND,
        GROUPED_ATTENTION,
        SILU_AND_MUL,
        MLP_FORWARD,
        KV_HEAD_RANGE,
        LOAD_QKV,
        LOAD_COLUMNS,
        ROW_PARALLEL_FORWARD,
        EMBED,
        GATHER_LOGITS,
        KEEP_TOP,
        RACE,
        GRAPH_BATCH_SIZES,
        PADDED_SIZE,
        WRITE_PADDED,
        TTFT,
        TPOT,
        PERCENTILE,
        MEETS,
        GOODPUT,
        NEXT_BATCH,
        GIVE_UP_HALF_COMPUTED,
    )
}
