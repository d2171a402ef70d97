"""Attention and fused operators. All are differentiable once, rope as often as one likes, and work under autocast,
torch.no_grad and torch.compile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._fully_sharded import wrapped
from ._library import classes, operators

_attention = operators.attention.default
_attention_with_logsumexp = operators.attention_with_logsumexp.default
_attention_forward = operators.attention_forward.default
_attention_backward = operators.attention_backward.default
_rms_norm = operators.rms_norm.default
_rope = operators.rope.default
_swiglu = operators.swiglu.default
_cross_entropy = operators.cross_entropy.default
_float8_linear = operators.float8_linear.default
_linear_cross_entropy = operators.linear_cross_entropy.default


def attention_implementations() -> list[str]:
    """ "auto" first, then every implementation of this build by name."""
    return operators.attention_implementations()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    align_last: bool = False,
    window: int | None = None,
    documents: Tensor | None = None,
    scale: float | None = None,
    implementation: str = "auto",
    deterministic: bool | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scale * q k^T) v, computed without the N x M matrix.

    q (..., H, N, D); k, v (..., H_kv, M, D), H a multiple of H_kv; or (B, N, D) and (N, D) without heads. Of
    float32, bfloat16, float16 or float64, one dtype and device. `causal`: query i sees keys 0..i; with `align_last`
    the last query sees the last key; with `window` a query sees the last so many of these keys only, its own among
    them. `documents`: what document_spans() gives, and nothing else, for rows packed with documents that do not see
    each other; N = M, and q (B..., H, N, D). `scale`: 1/sqrt(D) unless given. `deterministic`: equal inputs give
    equal bits, also in gradients; unless given, as torch.use_deterministic_algorithms says. Returns q's shape and dtype; with `return_lse` also the
    logsumexp of the scores (..., H, N), float32. ValueError for shapes, dtypes or devices that do not go together.
    """
    call = _attention_with_logsumexp if return_lse else _attention
    return call(
        q,
        k,
        v,
        causal=causal,
        align_last=align_last,
        window=window,
        documents=documents,
        scale=scale,
        implementation=implementation,
        deterministic=deterministic,
    )


def document_spans(ids: Tensor, end: int | None = None) -> Tensor:
    """The documents of rows: for every position the first of its document and the one behind its last, (2, B..., N)
    int32.

    ids (B..., N) of integers: tokens, of which each `end` is the last of its document; unless given any numbers, of
    which equal ones side by side are a document. Made once for all layers, without a synchronisation.
    """
    return operators.document_spans(ids, end)


def _own_kernel(q: Tensor) -> str:
    """The kernel of q's device; where it does not take q's dtype or D, tensor operations."""
    takes = q.dtype != torch.float64 and q.shape[-1] % (1 if q.is_cpu else 8) == 0 and q.shape[-1] <= 256
    return q.device.type if takes and q.device.type in ("cpu", "cuda") else "tiled"


def _needs_function(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a gradient is wanted, and there are a query and a key, without which no kernel is called."""
    wants_gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return wants_gradient and q.numel() > 0 and k.numel() > 0


def _in_autocast_dtype(x: Tensor) -> Tensor:
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def _forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, kernel: str) -> Tensor:
    ctx.settings = q.shape[-1] ** -0.5, is_causal, 0, torch.are_deterministic_algorithms_enabled(), kernel
    out, logsumexp = _attention_forward(q, k, v, *ctx.settings)
    ctx.save_for_backward(q, k, v, out, logsumexp)
    return out


class FlashAttention(torch.autograd.Function):
    """`FlashAttention.apply(q, k, v, is_causal=False)`: our kernel for the device, as an autograd function of Python.

    q (..., N, D), k and v (..., M, D). What it keeps for backward is q, k, v, the output and the logsumexp (..., N).
    A head dim that no kernel takes is computed by TiledFlashAttention's operations. Where no gradient is wanted
    nothing is kept.
    """

    @classmethod
    def apply(cls, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        if _needs_function(q, k, v):
            return super().apply(q, k, v, is_causal)
        return _attention(q, k, v, causal=is_causal, implementation=_own_kernel(q))

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        q, k, v = _in_autocast_dtype(q), _in_autocast_dtype(k), _in_autocast_dtype(v)
        return _forward(ctx, q, k, v, is_causal, _own_kernel(q))

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        # once_differentiable would let a gradient pass for a constant where grad_out is one.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise ValueError("[attention] expected a backward without create_graph: it has no second derivatives")
        q, k, v, out, logsumexp = ctx.saved_tensors
        grads = _attention_backward(grad_out.to(out.dtype), None, q, k, v, out, logsumexp, *ctx.settings)
        return *grads, None


class TiledFlashAttention(torch.autograd.Function):
    """The same from tensor operations on tiles, to be read beside the paper (Dao, "FlashAttention-2", 2023). Any
    D."""

    @classmethod
    def apply(cls, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        if _needs_function(q, k, v):
            return super().apply(q, k, v, is_causal)
        return _attention(q, k, v, causal=is_causal, implementation="tiled")

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        q, k, v = _in_autocast_dtype(q), _in_autocast_dtype(k), _in_autocast_dtype(v)
        return _forward(ctx, q, k, v, is_causal, "tiled")

    backward = FlashAttention.backward


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) over the last dimension, in float32. x (..., C), weight (C); x's shape and
    dtype, under autocast autocast's: what follows a norm is a product that would round to it."""
    return _rms_norm(x, weight, eps)


def rope(x: Tensor, positions: Tensor | None = None, *, theta: float = 10000.0) -> Tensor:
    """Turns each pair (x[..., 2i], x[..., 2i + 1]) by position * theta^(-2i / D).

    x (..., N, D), D even. positions: whole numbers (N), or of any shape that broadcasts to (..., N); unless given 0
    to N - 1. Angles are float32, also of float64 x: 5e-5 off at position 1,000.
    """
    return _rope(x, positions, theta=theta)


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    """silu(a) * b, element by element; a and b of one shape and dtype."""
    return _swiglu(a, b)


def float8_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T for layers in training. Its product and those of its gradients are of 8-bit numbers: x and weight
    are rounded to float8_e4m3fn, gradients to float8_e5m2, each tensor times one scale found in the call.

    x (..., C) bfloat16, or float32 under autocast in bfloat16; weight (R, C) bfloat16 or float32; C and R multiples
    of 16; on a GPU of compute capability 8.9 or higher. Returns (..., R) bfloat16. An element is some 4 % off, a
    gradient's 6 %. ValueError for others.
    """
    return _float8_linear(x, weight)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions of log(sum(exp(logits))) - logits[target], float32. logits (..., V), targets (...)
    int64; positions with a target of -100 are left out."""
    return _cross_entropy(logits, targets)


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """cross_entropy(x weight^T, targets), in nats. x (..., C), weight (V, C), targets (...) int64 as there.

    In float32 and bfloat16 a GPU never holds the logits whole. Under torch.compile a CPU takes the two operations one
    after the other.
    """
    return _linear_cross_entropy(x, weight, targets)


def clip_grad_norm_(parameters: Any, max_norm: float) -> Tensor:
    """Scales gradients down to the global L2 norm `max_norm`; returns the norm before, () float32. Nothing is read
    back.

    `parameters`: a tensor, an iterable of tensors, or a ShardedOptimizer or FullyShardedDataParallel. Where gradients
    lie divided on the ranks, those of a FullyShardedDataParallel's parameters too, all ranks call it, and get the
    same bits. Under torch.compile these are a graph break.
    """
    if hasattr(parameters, "clip_grad_norm_"):
        return parameters.clip_grad_norm_(max_norm)
    found: Iterable[Tensor] = [parameters] if isinstance(parameters, Tensor) else parameters
    distinct = {id(parameter): parameter for parameter in found}
    gradients = [parameter.grad for parameter in distinct.values() if parameter.grad is not None]
    if wrapped:
        norm = classes.ShardedUnits.norm_of_gradients(list(distinct.values()))
    else:
        norm = operators.grad_norm(gradients)
    operators.clip_to_norm_(gradients, norm, float(max_norm))
    return norm
