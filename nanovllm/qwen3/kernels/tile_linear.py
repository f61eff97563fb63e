"""A linear layer for 2 to 8 rows on tensor cores: the time is still that of reading the weights once.

A library's matrix product fetches a weight piece by piece as it multiplies. Here a program asks for all of its part of
the weight at once, before the kernel before has ended (`wait_for_inputs`), and multiplies when the inputs are there.
The sum over the inputs is cut into PARTS, one a warp, because a product with so few rows has no other work to share out
among the warps; their results are added up at the end. What is longer than the parts takes several TURNS, whose inputs
follow each other through the same shared memory: what a program does not hold, the next kernel's can, beside it. The
norm before and the gate after are done inside, as in `small_linear.py`.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import VERSION, dot_precision, let_next_start, shared_memory, wait_for_inputs
from nanovllm.qwen3.kernels.small_linear import PLAIN, Product, launch_product, silu_times, with_norm

MAX_ROWS = 8  # of a tensor core tile; with 16 the library is nearly as fast (docs/gpu.md)
_PART = 256  # inputs that a warp multiplies in one turn
# An older Triton (torch before 2.9) refuses products of fewer than 16 rows, and tuples that grow.
CAN_TILE = VERSION >= (3, 5)


@triton.jit
def _load_turns(
    ptrs, column, inside, WHOLE: tl.constexpr, IN_FEATURES: tl.constexpr, TURNS: tl.constexpr, TURN: tl.constexpr
):
    """A weight's TURNS tensors [PARTS, BLOCK_N, BLOCK_K], each TURN inputs on; column: of the first turn's inputs."""
    loaded = ()
    for turn in tl.static_range(TURNS):
        if WHOLE:  # masks cost registers
            loaded += (tl.load(ptrs + turn * TURN),)
        else:
            loaded += (tl.load(ptrs + turn * TURN, mask=inside & (column + turn * TURN < IN_FEATURES), other=0.0),)
    return loaded


@triton.jit(do_not_specialize=["rows"])  # one compilation for all numbers of rows
def _tile_kernel(
    x_ptr,
    residual_ptr,
    gain_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    new_residual_ptr,
    x_stride,
    rows,
    out_features,
    eps,
    PROLOGUE: tl.constexpr,
    GATED: tl.constexpr,
    WHOLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    TURNS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (block of output features): all rows against BLOCK_N rows of the weight.

    PROLOGUE, GATED: as in `small_linear.py`. WHOLE: TURNS * PARTS * BLOCK_K are IN_FEATURES and BLOCK_N divides
    out_features. AT_ONCE: the next kernel may start before this one has its weights.
    """
    if AT_ONCE:
        let_next_start(EARLY)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.arange(0, PARTS)
    m = tl.arange(0, BLOCK_M)
    TURN: tl.constexpr = PARTS * BLOCK_K
    first_column = part[:, None, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, None, :]
    row_inside = m[None, :, None] < rows
    n_inside = n[None, :, None] < out_features
    weight_ptrs = weight_ptr + n[None, :, None] * IN_FEATURES + first_column
    weights = _load_turns(weight_ptrs, first_column, n_inside, WHOLE, IN_FEATURES, TURNS, TURN)
    up_weights = weights
    if GATED:
        up_ptrs = weight_ptrs + out_features * IN_FEATURES
        up_weights = _load_turns(up_ptrs, first_column, n_inside, WHOLE, IN_FEATURES, TURNS, TURN)
    gains = ()
    if PROLOGUE > 0:
        for turn in tl.static_range(TURNS):
            column = first_column + turn * TURN
            gains += (tl.load(gain_ptr + column, mask=column < IN_FEATURES, other=0.0),)
    bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n, mask=n < out_features, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    dtype = out_ptr.dtype.element_ty
    inputs = ()
    squares = tl.zeros([BLOCK_M], tl.float32)
    for turn in tl.static_range(TURNS):
        column = first_column + turn * TURN
        x_mask = row_inside if WHOLE else row_inside & (column < IN_FEATURES)
        x = tl.load(x_ptr + m[None, :, None] * x_stride + column, mask=x_mask, other=0.0)
        if PROLOGUE == 2:
            at = m[None, :, None] * IN_FEATURES + column
            residual = tl.load(residual_ptr + at, mask=x_mask, other=0.0)
            x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
            if tl.program_id(0) == 0:
                tl.store(new_residual_ptr + at, x, mask=x_mask)
        if PROLOGUE > 0:
            x32 = x.to(tl.float32)
            squares += tl.sum(tl.sum(x32 * x32, 2), 0)
        inputs += (x,)
    if PROLOGUE > 0:
        scale = 1.0 / tl.sqrt(squares / IN_FEATURES + eps)
    y_parts = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    up_parts = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    for turn in tl.static_range(TURNS):
        x = inputs[turn]
        if PROLOGUE > 0:  # rounded where the reference rounds: after the scaling, after the gain
            normed = (x.to(tl.float32) * scale[None, :, None]).to(dtype)
            x = (normed.to(tl.float32) * gains[turn].to(tl.float32)).to(dtype)
        x = tl.permute(x, (0, 2, 1))
        y_parts = tl.dot(weights[turn], x, y_parts, input_precision=PRECISION)
        if GATED:
            up_parts = tl.dot(up_weights[turn], x, up_parts, input_precision=PRECISION)
    y = tl.sum(y_parts, 0) + bias[:, None]
    if GATED:
        y = silu_times(y, tl.sum(up_parts, 0), dtype)
    out_mask = (m[None, :] < rows) & (n[:, None] < out_features)
    tl.store(out_ptr + m[None, :] * out_features + n[:, None], y.to(dtype), mask=out_mask)


def suits(x: torch.Tensor, in_features: int, gated: bool = False) -> bool:
    """True for 3 to 8 rows x and a weight [.., in_features] of which a program can hold its part, and a turn of x.

    And for two rows where that part is small; where it is not, `small_linear.py` was faster on an H200.
    """
    fewest = 2 if _warps(in_features, gated) == 4 else 3
    turns, parts, block_k = _cut(in_features, gated)
    held = _weight_rows(in_features, gated) * (2 if gated else 1) * turns + MAX_ROWS
    held_bytes = held * parts * block_k * x.element_size()
    return CAN_TILE and fewest <= x.shape[0] <= MAX_ROWS and held_bytes < shared_memory(x.device)


def _weight_rows(in_features: int, gated: bool) -> int:
    """Rows of the weight a program: one tensor core tile, or two where they are short; best of 16 and 32 on an H200."""
    return 32 if in_features <= 1024 and not gated else 16


def _weights(in_features: int, gated: bool) -> int:
    """Elements of the weight that a program multiplies."""
    return _weight_rows(in_features, gated) * in_features * (2 if gated else 1)


def _warps(in_features: int, gated: bool) -> int:
    """Warps of a program: four, or eight where their registers would not hold the weight on its way."""
    return 4 if _weights(in_features, gated) <= 48 * 1024 else 8


def _cut(in_features: int, gated: bool) -> tuple[int, int, int]:
    """(turns, parts of a turn, inputs of a part) that cover all inputs."""
    block_k = min(_PART, max(16, triton.next_power_of_2(in_features)))
    parts = min(_warps(in_features, gated), triton.next_power_of_2(triton.cdiv(in_features, block_k)))
    return triton.cdiv(in_features, parts * block_k), parts, block_k


def _lets_next_start_at_once(prologue: int, product: Product) -> bool:
    """Whether the next kernel may start before this one has its weights.

    With a long wait for the weight, the next kernel's programs, and so their weight, would come too late. Behind QKV
    comes attention, whose first keys come sooner so; with up to four rows it did not pay on an H200.
    """
    is_qkv = prologue > 0 and not product.gated
    waits_long = _weights(product.x.shape[1], product.gated) > 32 * 1024
    return waits_long or (is_qkv and product.x.shape[0] > 4)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `small_linear.linear`."""
    return _launch(PLAIN, Product(x, weight, bias))[0]


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `small_linear.norm_linear`."""
    return with_norm(_launch, Product(x, weight, bias, residual, gain, eps, gated))


def _launch(prologue: int, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
    in_features = product.x.shape[1]
    block_n = _weight_rows(in_features, product.gated)
    turns, parts, block_k = _cut(in_features, product.gated)
    options = {
        "WHOLE": turns * parts * block_k == in_features and product.out_features % block_n == 0,
        "AT_ONCE": _lets_next_start_at_once(prologue, product),
        "TURNS": turns,
        "PARTS": parts,
        "BLOCK_M": MAX_ROWS,
        "BLOCK_K": block_k,
        "PRECISION": dot_precision(product.x.dtype),
        "num_warps": _warps(in_features, product.gated),
        "num_stages": 1,
    }
    return launch_product(_tile_kernel, block_n, options, prologue, product)
