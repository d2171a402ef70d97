#include "flashstep/bench/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <torch/csrc/autograd/autograd.h>

#include "flashstep/attention.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/turns.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

using Lengths = std::vector<int64_t>;
using Pairs = std::vector<std::pair<int64_t, int64_t>>;  // of queries and keys

Pairs doubled(int64_t first, int64_t last) {
  Pairs pairs;
  for (int64_t n = first; n <= last; n *= 2) pairs.emplace_back(n, n);
  return pairs;
}

Pairs square(const Lengths& lengths) {
  Pairs pairs;
  for (const int64_t n : lengths) pairs.emplace_back(n, n);
  return pairs;
}

// Lengths as of the models that people train at home.
Pairs swept() {
  Pairs pairs = doubled(128, 2048);
  for (int64_t n = 128; n <= 2048; n *= 2) pairs.emplace_back(n, n / 2);
  for (int64_t n = 128; n <= 1024; n *= 2) pairs.emplace_back(n, n * 2);
  return pairs;
}

struct PresetAxes {
  std::string name;
  std::vector<std::string> passes, dtypes;
  std::vector<bool> causal;
  int64_t batch;
  Lengths heads, head_dims;
  Pairs pairs;
};

// "sweep" has no mask: queries and keys may then differ in number for every peer.
const std::vector<PresetAxes>& preset_axes() {
  static const std::vector<std::string> apart = {"forward", "backward"};
  static const std::vector<bool> masks = {true, false};
  static const Lengths dims = {16, 32, 64, 128};
  static const std::vector<PresetAxes> all = {
      {"handout", kAttentionPasses, {"bf16", "fp32"}, {true}, 1, {1}, dims, doubled(128, 65536)},
      {"throughput", apart, {"bf16"}, masks, 4, {16}, {64, 128}, square({1024, 4096, 16384})},
      {"leaderboard", {"both"}, {"bf16"}, {true}, 1, {16}, {64}, square({16384})},
      {"sweep", {"forward"}, {"fp32", "bf16"}, {false}, 4, {8}, {64}, swept()},
      {"cpu", apart, {"fp32", "bf16"}, masks, 1, {1, 16}, {64, 128}, doubled(512, 4096)},
      {"grid",
       apart,
       {"fp32", "bf16", "fp16"},
       {false},
       8,
       {0},
       dims,
       square({256, 1024, 4096, 8192, 16384})}};
  return all;
}

// Matrices of (heads, rows, M) that the formula and its gradient hold at once: scores, the masked
// ones, weights, their gradients, and what autograd keeps of them.
constexpr int64_t kMatrices = 8;

// At most so many pairs of query and key are checked, in whole heads: 0.2 s of float64 products on
// an H200, one second on two CPU cores.
int64_t checked_pairs(const at::Device& device) {
  return device.is_cuda() ? int64_t{1} << 33 : int64_t{1} << 25;
}

at::Tensor spread_heads(int64_t all, int64_t pairs_a_head, const at::Device& device) {
  const int64_t wanted =
      std::clamp<int64_t>(checked_pairs(device) / std::max<int64_t>(pairs_a_head, 1), 2, all);
  if (wanted >= all || all <= 2) return at::arange(all, at::kLong);
  return at::linspace(0, static_cast<double>(all - 1), wanted, at::kDouble).round().to(at::kLong);
}

// All of (heads, N or M, D) and one dtype, in which all is computed. In blocks of queries, whose
// shares of grad_k and grad_v are added in float64 and rounded once.
AttentionOutcome blockwise(const AttentionCase& c, const AttentionInputs& x, bool gradients) {
  const at::AutoGradMode graph(gradients);
  const int64_t heads = x.q.size(0), n = x.q.size(1), m = x.k.size(1);
  const int64_t memory = int64_t{1} << (x.q.is_cuda() ? 33 : 29);  // 8 GiB, 512 MiB
  const int64_t row_bytes = kMatrices * heads * m * static_cast<int64_t>(x.q.element_size());
  const int64_t rows = std::clamp<int64_t>(memory / row_bytes, 16, n);
  const auto wide = x.k.options().dtype(at::kDouble);
  at::Tensor grad_k = at::zeros(x.k.sizes(), wide), grad_v = at::zeros(x.v.sizes(), wide);
  std::vector<at::Tensor> out, grad_q;
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t count = std::min(rows, n - first);
    // Keys behind the last query of the block, or before the first one's window, none of it sees.
    const bool cut = c.window > 0 && c.documents == 0;
    const int64_t begin = cut ? std::max<int64_t>(first - c.window + 1, 0) : 0;
    const int64_t keys = (c.causal ? std::min(m, first + count) : m) - begin;
    const auto block = leaves_of({x.q.narrow(1, first, count), x.k.narrow(1, begin, keys),
                                  x.v.narrow(1, begin, keys), x.grad_out.narrow(1, first, count)});
    const auto hidden = hidden_keys(c, first - begin, count, keys, x.q.device());
    const auto found = outcome_of([&](const auto& q, const auto& k,
                                      const auto& v) { return plain_attention(q, k, v, hidden); },
                                  block, gradients);
    out.push_back(found[0]);
    if (!gradients) continue;
    grad_q.push_back(found[1]);
    grad_k.narrow(1, begin, keys).add_(found[2]);
    grad_v.narrow(1, begin, keys).add_(found[3]);
  }
  if (!gradients) return {at::cat(out, 1)};
  const auto dtype = x.q.scalar_type();
  return {at::cat(out, 1), at::cat(grad_q, 1), grad_k.to(dtype), grad_v.to(dtype)};
}

// The most that rounding to the dtype changes a number of size 1.
double half_ulp(at::ScalarType dtype) {
  return std::ldexp(1.0, dtype == at::kBFloat16 ? -8 : dtype == at::kHalf ? -11 : -24);
}

// What float32 itself may add, on the standard normal inputs above, where the formula happens to be
// exact: 2^-22 max|v|, as products of split TF32 numbers leave it; and in a backward pass from the
// logsumexp, which subtracts two sums of D products, dweights and their mean, both rounded at up to
// 4 sqrt(D), times elements of up to 4, times the scale 1 / sqrt(D).
const double kFloatRounding = 16 * half_ulp(at::kFloat);

// (heads, rows, D) -> (heads, rows, 1): the largest absolute value in the row's block of rows.
at::Tensor largest_of_block(const at::Tensor& x) {
  constexpr int64_t kRows = 128;
  const int64_t heads = x.size(0), rows = x.size(1), blocks = (rows + kRows - 1) / kRows;
  const auto largest = at::constant_pad_nd(x.abs().amax(2), {0, blocks * kRows - rows});
  return largest.view({heads, blocks, kRows})
      .amax(2, /*keepdim=*/true)
      .expand({heads, blocks, kRows})
      .reshape({heads, blocks * kRows, 1})
      .narrow(1, 0, rows);
}

}  // namespace

AttentionSize size_of(const AttentionCase& c) {
  AttentionSize size;
  size.batches = c.batch;
  size.heads = size.kv_heads = std::max<int64_t>(c.heads, 1);
  size.n = c.n;
  size.m = c.m;
  size.head_dim = c.head_dim;
  size.causal = c.causal;
  size.window = c.attention_window().value_or(size.window);
  return size;
}

double pass_flops(const AttentionCase& c, const std::string& pass) {
  double share = 1;  // of the pairs, which documents leave
  if (c.documents > 0) {
    const auto begin = documents_of(c, at::kCPU)[0][0].to(at::kLong);
    auto seen = at::arange(1, c.n + 1) - begin;
    if (c.window > 0) seen = seen.clamp_max(c.window);
    share = seen.sum().item<double>() / static_cast<double>(visible_pairs(size_of(c)));
  }
  return share * ((pass == "backward" ? 0 : attention_forward_flops(size_of(c))) +
                  (pass == "forward" ? 0 : attention_backward_flops(size_of(c))));
}

double pass_bytes(const AttentionCase& c, const std::string& pass) {
  return (pass == "backward" ? 0 : attention_forward_bytes(size_of(c), element_bytes(c.dtype))) +
         (pass == "forward" ? 0 : attention_backward_bytes(size_of(c), element_bytes(c.dtype)));
}

std::string describe(const AttentionCase& c) {
  return str(c.dtype, " B ", c.batch, c.heads > 0 ? str(" H ", c.heads) : "", " N ", c.n,
             c.m != c.n ? str(" M ", c.m) : "", " D ", c.head_dim, c.causal ? " causal" : "",
             c.window > 0 ? str(" window ", c.window) : "",
             c.documents > 0 ? str(" documents ", c.documents) : "");
}

std::vector<std::string> attention_presets() {
  std::vector<std::string> names;
  for (const PresetAxes& axes : preset_axes()) names.push_back(axes.name);
  return names;
}

AttentionPreset attention_preset(const std::string& name, const Pairs& pairs) {
  const auto& all = preset_axes();
  const auto axes =
      std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.name == name; });
  require(axes != all.end(), "[bench attention] expected preset to be one of ",
          join(attention_presets()), ", got \"", name, "\"");
  AttentionPreset preset{name, {}, axes->passes};
  for (const std::string& dtype : axes->dtypes) {
    for (const bool causal : axes->causal) {
      for (const int64_t heads : axes->heads) {
        for (const int64_t d : axes->head_dims) {
          for (const auto& [n, m] : name == "sweep" && !pairs.empty() ? pairs : axes->pairs)
            preset.cases.push_back({dtype, axes->batch, heads, n, m, d, causal});
        }
      }
    }
  }
  return preset;
}

AttentionPreset filtered(AttentionPreset preset, const AttentionFilter& filter) {
  std::erase_if(preset.cases, [&](const AttentionCase& c) {
    return !is_wanted(filter.dtypes, c.dtype) || !is_wanted(filter.lengths, c.n) ||
           !is_wanted(filter.head_dims, c.head_dim) ||
           (filter.window + filter.documents > 0 && !c.causal) ||
           (filter.documents > 0 && (c.heads == 0 || c.n != c.m));
  });
  for (AttentionCase& c : preset.cases) {
    c.window = filter.window;
    c.documents = filter.documents;
  }
  std::erase_if(preset.passes, [&](const auto& pass) { return !is_wanted(filter.passes, pass); });
  return preset;
}

AttentionInputs random_inputs(const AttentionCase& c, const at::Device& device, uint64_t seed) {
  torch::manual_seed(seed);
  const int64_t heads = std::max<int64_t>(c.heads, 1);
  const auto draw = [&](int64_t rows) {
    return at::randn({c.batch, heads, rows, c.head_dim},
                     at::TensorOptions(at::kFloat).device(device))
        .to(scalar_type(c.dtype));
  };
  at::Tensor q = draw(c.n), k = draw(c.m), v = draw(c.m);
  return {q, k, v, draw(c.n)};
}

at::Tensor documents_of(const AttentionCase& c, const at::Device& device) {
  if (c.documents == 0) return {};
  torch::manual_seed(static_cast<uint64_t>(c.documents));
  const auto ids = (at::rand({c.n}) < 1.0 / static_cast<double>(c.documents)).cumsum(0);
  return document_spans(ids).unsqueeze(1).expand({2, c.batch, c.n}).to(device).contiguous();
}

std::vector<at::Tensor> gradients_of(const at::Tensor& out, const AttentionInputs& inputs,
                                     bool retain_graph) {
  return torch::autograd::grad({out}, {inputs.q, inputs.k, inputs.v}, {inputs.grad_out},
                               retain_graph);
}

AttentionOutcome outcome_of(const AttentionForward& forward, const AttentionInputs& inputs,
                            bool gradients) {
  const at::Tensor out = forward(inputs.q, inputs.k, inputs.v);
  if (!gradients) return {out.detach()};
  const auto found = gradients_of(out, inputs);
  return {out.detach(), found[0], found[1], found[2]};
}

AttentionInputs leaves_of(const AttentionInputs& inputs, bool without_heads) {
  const auto alone = [&](const at::Tensor& x) {
    return (without_heads ? x.squeeze(1) : x).detach();
  };
  const auto leaf = [&](const at::Tensor& x) { return alone(x).requires_grad_(); };
  return {leaf(inputs.q), leaf(inputs.k), leaf(inputs.v), alone(inputs.grad_out)};
}

at::Tensor hidden_keys(const AttentionCase& c, int64_t first, int64_t rows, int64_t keys,
                       const at::Device& device) {
  if (!c.causal) return {};
  const auto all = at::ones({rows, keys}, at::TensorOptions(at::kBool).device(device));
  auto hidden = all.triu(first + 1);
  if (c.window > 0) hidden.logical_or_(all.tril(first - c.window));
  if (c.documents > 0) {
    const auto begin = documents_of(c, device)[0][0].narrow(0, first, rows).unsqueeze(1);
    hidden.logical_or_(at::arange(keys, begin.options()) < begin);
  }
  return hidden;
}

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& hidden) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  auto scores = at::matmul(q, k.transpose(-2, -1)) * scale;
  if (hidden.defined())
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), v);
}

AttentionReference::AttentionReference(const AttentionCase& c, const AttentionInputs& inputs,
                                       bool gradients)
    : all_heads_(inputs.q.size(0) * inputs.q.size(1)),
      heads_(spread_heads(all_heads_, visible_pairs(size_of(c)), inputs.q.device())
                 .to(inputs.q.device())),
      gradients_(gradients) {
  const AttentionInputs x = {some_heads(inputs.q), some_heads(inputs.k), some_heads(inputs.v),
                             some_heads(inputs.grad_out)};
  const auto wide = [](const at::Tensor& one) { return one.to(at::kDouble); };
  oracle_ = blockwise(c, {wide(x.q), wide(x.k), wide(x.v), wide(x.grad_out)}, gradients);
  const auto formula = blockwise(c, x, gradients);
  for (size_t i = 0; i < oracle_.size() && oracle_[i].defined() && oracle_[i].numel() > 0; ++i) {
    tolerance_[i] = 2 * largest_of_block(formula[i].to(at::kDouble) - oracle_[i]) +
                    half_ulp(scalar_type(c.dtype)) * largest_of_block(oracle_[i]) + kFloatRounding;
  }
}

at::Tensor AttentionReference::some_heads(const at::Tensor& x) const {
  return x.reshape({all_heads_, x.size(-2), x.size(-1)}).index_select(0, heads_);
}

AttentionErrors AttentionReference::errors(const AttentionOutcome& outcome) const {
  AttentionErrors errors;
  for (size_t i = 0; i < (gradients_ ? oracle_.size() : 1); ++i) {
    const at::Tensor &expected = oracle_[i], &x = outcome[i];
    const int64_t rows = expected.size(1), width = expected.size(2);
    if (!x.defined() || x.numel() != all_heads_ * rows * width) {
      errors.wrong[i] = expected.numel();
      errors.worst[i] = std::numeric_limits<double>::infinity();
      continue;
    }
    const auto got = some_heads(x.reshape({all_heads_, rows, width})).to(at::kDouble);
    const auto error = (got - expected).abs() / tolerance_[i];
    errors.wrong[i] = (error <= 1).logical_not().sum().item<int64_t>();  // a NaN is wrong
    errors.worst[i] = error.max().item<double>();
  }
  return errors;
}

}  // namespace flashstep::tools
