// FlashAttention-2 with tensor operations on tiles: Dao, "FlashAttention-2" (2023). Forward is
// algorithm 1; backward recomputes P from the logsumexp L and D = rowsum(dO o O) in two passes, one
// that owns tiles of keys (dK, dV) and one that owns tiles of queries (dQ), so that nothing is
// added up across tiles in memory. The variables have the paper's names. Slow, and short enough to
// be read beside it.
#include <algorithm>
#include <limits>

#include "flashstep/attention/implementations.h"

namespace flashstep::internal {
namespace {

using at::Tensor;

constexpr int64_t kRows = 64;     // B_r, queries a tile
constexpr int64_t kColumns = 64;  // B_c, keys a tile
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Tile = attention_kernel::Range;
using attention_kernel::Mask;

std::vector<Tile> tiles(int64_t length, int64_t size) {
  std::vector<Tile> out;
  for (int64_t begin = 0; begin < length; begin += size) {
    out.push_back({begin, std::min(begin + size, length)});
  }
  return out;
}

Tensor rows(const Tensor& x, Tile tile) { return x.narrow(2, tile.begin, tile.size()); }

// Whether some query of tile i sees some key of tile j.
bool any_visible(const Mask& mask, Tile i, Tile j) {
  return j.begin < visible_keys(mask, i.end - 1).end && visible_keys(mask, i.begin).begin < j.end;
}

// S_ij = scale Q_i K_j^T in the wide dtype, -infinity where hidden.
Tensor scores(const Tensor& q_i, const Tensor& k_j, const AttentionSettings& settings,
              const Mask& mask, Tile i, Tile j) {
  const Tensor s = at::matmul(q_i, k_j.transpose(-2, -1)) * settings.scale;
  if (!mask.causal && !settings.documents.defined()) return s;
  return s.masked_fill(hidden_pairs(mask, settings.documents, i, j, s.device()), -kInfinity);
}

// exp(x - reference), zero where the reference is -infinity: a row without a finite score yet.
Tensor exp_below(const Tensor& x, const Tensor& reference) {
  return (x - reference.masked_fill(reference == -kInfinity, 0)).exp();
}

Tensor wide(const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

void tiled_forward(const ForwardTensors& t, const AttentionSettings& settings) {
  const Mask mask = bounded_mask(settings, t.q, t.k);
  const Tensor k_all = wide(one_head_per_query_head(t.k, t.q)),
               v_all = wide(one_head_per_query_head(t.v, t.q));
  for (const Tile i : tiles(t.q.size(2), kRows)) {
    const Tensor q_i = wide(rows(t.q, i));
    Tensor o_i = at::zeros_like(q_i);
    Tensor m_i = at::full({t.q.size(0), t.q.size(1), i.size(), 1}, -kInfinity, q_i.options());
    Tensor l_i = at::zeros_like(m_i);
    for (const Tile j : tiles(t.k.size(2), kColumns)) {
      if (!any_visible(mask, i, j)) continue;
      const Tensor s_ij = scores(q_i, rows(k_all, j), settings, mask, i, j);
      const Tensor m_new = at::maximum(m_i, s_ij.amax(-1, /*keepdim=*/true));
      const Tensor p_ij = exp_below(s_ij, m_new), rescale = exp_below(m_i, m_new);
      l_i = rescale * l_i + p_ij.sum(-1, /*keepdim=*/true);
      o_i = rescale * o_i + at::matmul(p_ij, rows(v_all, j));
      m_i = m_new;
    }
    l_i = l_i.masked_fill(l_i == 0, NAN);  // scores all -infinity have no softmax; no scores:
    const Tensor fully_masked = sees_nothing(mask, i, q_i.device());
    rows(t.out, i).copy_((o_i / l_i).masked_fill(fully_masked, 0));
    rows(t.logsumexp, i).copy_((m_i + l_i.log()).masked_fill(fully_masked, -kInfinity).squeeze(-1));
  }
}

// P_ij and dS_ij of one pair of tiles.
struct Pair {
  Tensor p, ds;
};

Pair recompute(const Tensor& q_i, const Tensor& do_i, const Tensor& l_i, const Tensor& d_i,
               const Tensor& k_j, const Tensor& v_j, const AttentionSettings& settings,
               const Mask& mask, Tile i, Tile j) {
  const Tensor p = exp_below(scores(q_i, k_j, settings, mask, i, j), l_i);
  const Tensor dp = at::matmul(do_i, v_j.transpose(-2, -1));
  return {p, p * (dp - d_i)};
}

// Sums the heads that read one key head: (B, H, M, D) to (B, H_kv, M, D).
Tensor sum_of_group(const Tensor& x, int64_t kv_heads) {
  const int64_t group = x.size(1) / kv_heads;
  return x.view({x.size(0), kv_heads, group, x.size(2), x.size(3)}).sum(2);
}

void tiled_backward(const BackwardTensors& t, const AttentionSettings& settings) {
  const Mask mask = bounded_mask(settings, t.q, t.k);
  const Tensor k_all = wide(one_head_per_query_head(t.k, t.q)),
               v_all = wide(one_head_per_query_head(t.v, t.q)), q_all = wide(t.q),
               do_all = wide(t.grad_out);
  const Tensor l_all = t.logsumexp.unsqueeze(-1);
  Tensor d_all = (do_all * wide(t.out)).sum(-1, /*keepdim=*/true);
  // dL/dS_ij = P_ij: a gradient of the logsumexp joins where D does, with the other sign.
  if (t.grad_logsumexp.defined()) d_all = d_all - t.grad_logsumexp.unsqueeze(-1);
  d_all =
      d_all.masked_fill(l_all == -kInfinity, 0);  // no key is seen: whatever is given for the row
  const auto query_tiles = tiles(t.q.size(2), kRows), key_tiles = tiles(t.k.size(2), kColumns);
  const auto pair_of = [&](Tile i, Tile j) {
    return recompute(rows(q_all, i), rows(do_all, i), rows(l_all, i), rows(d_all, i),
                     rows(k_all, j), rows(v_all, j), settings, mask, i, j);
  };
  for (const Tile j : key_tiles) {
    Tensor dk_j = at::zeros_like(rows(k_all, j)), dv_j = at::zeros_like(dk_j);
    for (const Tile i : query_tiles) {
      if (!any_visible(mask, i, j)) continue;
      const auto [p, ds] = pair_of(i, j);
      dv_j += at::matmul(p.transpose(-2, -1), rows(do_all, i));
      dk_j += at::matmul(ds.transpose(-2, -1), rows(q_all, i)) * settings.scale;
    }
    rows(t.grad_k, j).copy_(sum_of_group(dk_j, t.k.size(1)));
    rows(t.grad_v, j).copy_(sum_of_group(dv_j, t.k.size(1)));
  }
  for (const Tile i : query_tiles) {
    Tensor dq_i = at::zeros_like(rows(q_all, i));
    for (const Tile j : key_tiles) {
      if (!any_visible(mask, i, j)) continue;
      dq_i += at::matmul(pair_of(i, j).ds, rows(k_all, j)) * settings.scale;
    }
    rows(t.grad_q, i).copy_(dq_i);
  }
}

std::string tiled_refusal(const Tensor& q, const Tensor&, const Tensor&) {
  if (q.is_meta() || q.is_cpu() || q.is_cuda()) return "";
  return "tensors on the CPU or a GPU, got them on " + q.device().str();
}

}  // namespace

const AttentionKernel kTiledKernel = {"tiled", tiled_refusal, tiled_forward, tiled_backward};

}  // namespace flashstep::internal
