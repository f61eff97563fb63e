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
    )
}
