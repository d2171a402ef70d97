"""The modules of the program's model, over the fused operators: the same parameter names, numbers and first values.

No biases. initialize(module, seed) gives parameters the values that the program draws for a seed and their names.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._library import operators
from ._operators import attention, document_spans, float8_linear, linear_cross_entropy, rms_norm, rope, swiglu

_linear = operators.linear.default
_embedding = operators.embedding.default
TRUNCATION = 3.0  # standard deviations beyond which nothing is drawn


class Linear(nn.Module):
    """x (..., in_features) -> x weight^T (..., out_features); float8: by flashstep.float8_linear."""

    float8 = False

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        return float8_linear(x, self.weight) if self.float8 else _linear(x, self.weight)


class Embedding(nn.Module):
    """ids (...) int64 -> rows of weight (..., embedding_dim)."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        return _embedding(self.weight, ids)


class RMSNorm(nn.Module):
    """flashstep.rms_norm with a weight (dim)."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class SwiGLU(nn.Module):
    """w2(silu(w1 x) * w3 x): (..., d_model) -> (..., d_model)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(d_model, d_ff), Linear(d_ff, d_model), Linear(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(swiglu(self.w1(x), self.w3(x)))


class CausalSelfAttention(nn.Module):
    """x (..., N, d_model) -> (..., N, d_model); rotary positions unless rope_theta is None. num_kv_heads heads of
    keys and values (None: num_heads), each read by num_heads / num_kv_heads of the queries'. window: a query sees
    the last so many keys up to its own (None: all); documents (document_spans) do not see each other."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        window: int | None = None,
        rope_theta: float | None = 10000.0,
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"[nn] expected d_model divisible by num_heads, got {d_model} and {num_heads}")
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if kv_heads < 1 or num_heads % kv_heads:
            raise ValueError(f"[nn] expected num_heads divisible by num_kv_heads, got {num_heads} and {kv_heads}")
        self.num_heads, self.num_kv_heads = num_heads, kv_heads
        self.window, self.rope_theta, self.head_dim = window, rope_theta, d_model // num_heads
        of_keys = kv_heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = (Linear(d_model, width) for width in (d_model, of_keys, of_keys))
        self.output_proj = Linear(d_model, d_model)

    def forward(self, x: Tensor, positions: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        def heads(projection: Linear) -> Tensor:  # (..., N, C) -> (..., H, N, D)
            return projection(x).view(*x.shape[:-1], -1, self.head_dim).transpose(-2, -3)

        q, k, v = heads(self.q_proj), heads(self.k_proj), heads(self.v_proj)
        if self.rope_theta is not None:
            if positions is not None and positions.dim() > 1:
                positions = positions.unsqueeze(-2)  # the same for all heads
            q, k = rope(q, positions, theta=self.rope_theta), rope(k, positions, theta=self.rope_theta)
        attended = attention(
            q, k.to(q.dtype), v.to(q.dtype), causal=True, window=self.window, documents=documents
        )
        return self.output_proj(attended.transpose(-2, -3).flatten(-2))


class TransformerBlock(nn.Module):
    """x + attn(ln1(x)), then + ffn(ln2(.))."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        num_kv_heads: int | None = None,
        window: int | None = None,
        rope_theta: float | None = 10000.0,
        norm_epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attn = CausalSelfAttention(
            d_model, num_heads, num_kv_heads=num_kv_heads, window=window, rope_theta=rope_theta
        )
        self.ffn = SwiGLU(d_model, d_ff)
        self.ln1, self.ln2 = RMSNorm(d_model, norm_epsilon), RMSNorm(d_model, norm_epsilon)

    def forward(self, x: Tensor, positions: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        y = x + self.attn(self.ln1(x), positions, documents)
        return y + self.ffn(self.ln2(y))


class TransformerLM(nn.Module):
    """The program's model: tokens (B, N) int64 -> logits (B, N, vocab_size). tie_embeddings: lm_head.weight is
    token_embeddings.weight. document_end: the token that ends a document, beyond which no token sees (None: one
    document a row)."""

    def __init__(
        self,
        *,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_ff: int,
        num_kv_heads: int | None = None,
        window: int | None = None,
        document_end: int | None = None,
        tie_embeddings: bool = False,
        rope_theta: float | None = 10000.0,
        norm_epsilon: float = 1e-5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.context_length, self.document_end = context_length, document_end
        self.token_embeddings = Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(
            TransformerBlock(
                d_model,
                num_heads,
                d_ff,
                num_kv_heads=num_kv_heads,
                window=window,
                rope_theta=rope_theta,
                norm_epsilon=norm_epsilon,
            )
            for _ in range(num_layers)
        )
        self.ln_final = RMSNorm(d_model, norm_epsilon)
        self.lm_head = Linear(d_model, vocab_size)
        if tie_embeddings:
            self.lm_head.weight = self.token_embeddings.weight
        initialize(self, seed)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Up to and including the final norm: (B, N, d_model)."""
        if tokens.shape[-1] > self.context_length:
            raise ValueError(
                f"[nn] expected at most context_length = {self.context_length} tokens, got {tokens.shape[-1]}"
            )
        x = self.token_embeddings(tokens)
        documents = None if self.document_end is None else document_spans(tokens, self.document_end)
        for layer in self.layers:
            x = layer(x, documents=documents)
        return self.ln_final(x)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.hidden(tokens))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of forward(tokens) and targets (B, N), in nats."""
        return linear_cross_entropy(self.hidden(tokens), self.lm_head.weight, targets)


def set_float8_products(module: nn.Module, enabled: bool = True) -> None:
    """Whether the Linear layers in `module` multiply 8-bit numbers (flashstep.float8_linear). A model's head stays out:
    set_float8_products(model.layers)."""
    for child in module.modules():
        if isinstance(child, Linear):
            child.float8 = enabled


def initialize(module: nn.Module, seed: int | None = None) -> None:
    """First values of the linear and embedding weights in `module`, norms 1: those that the program draws for
    `seed` and a parameter's name; a seed from torch's generator unless given. A weight of an embedding and a linear
    layer has the former's name and the latter's spread. Nothing on the meta device."""
    if seed is None:
        seed = int(torch.randint(2**62, (), device="cpu"))
    children = list(module.named_modules())
    embeddings = {id(child.weight) for _, child in children if isinstance(child, Embedding)}
    linear = {id(child.weight) for _, child in children if isinstance(child, Linear)}
    for name, child in children:
        if isinstance(child, RMSNorm):
            nn.init.ones_(child.weight)
        elif isinstance(child, Linear) and id(child.weight) in embeddings:
            continue
        elif isinstance(child, (Linear, Embedding)) and not child.weight.is_meta:
            deviation = (2.0 / sum(child.weight.shape)) ** 0.5 if id(child.weight) in linear else 1.0
            operators.initialize_(
                child.weight.detach(), deviation, TRUNCATION, seed, f"{name}.weight" if name else "weight"
            )
