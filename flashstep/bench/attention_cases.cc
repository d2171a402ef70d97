#include "flashstep/bench/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <torch/csrc/autograd/autograd.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/record.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

const std::vector<AttentionPass> kAllAttentionPasses = {
    AttentionPass::kForward, AttentionPass::kBackward, AttentionPass::kBoth};

AttentionCase square(std::string dtype, int64_t batch, int64_t heads, int64_t n, int64_t head_dim,
                     bool causal) {
  return {std::move(dtype), batch, heads, n, n, head_dim, causal};
}

// The handout's table: 2 dtypes x 10 lengths x 4 head dims.
AttentionPreset handout() {
  AttentionPreset preset{"handout", {}, kAllAttentionPasses};
  for (const char* dtype : {"bf16", "fp32"}) {
    for (const int64_t d : {16, 32, 64, 128}) {
      for (int64_t n = 128; n <= 65536; n *= 2)
        preset.cases.push_back(square(dtype, 1, 1, n, d, true));
    }
  }
  return preset;
}

AttentionPreset throughput() {
  AttentionPreset preset{"throughput", {}, {AttentionPass::kForward, AttentionPass::kBackward}};
  for (const bool causal : {true, false}) {
    for (const int64_t d : {64, 128}) {
      for (const int64_t n : {1024, 4096, 16384})
        preset.cases.push_back(square("bf16", 4, 16, n, d, causal));
    }
  }
  return preset;
}

AttentionPreset on_the_cpu() {
  AttentionPreset preset{"cpu", {}, {AttentionPass::kForward, AttentionPass::kBackward}};
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const bool causal : {true, false}) {
      for (const int64_t heads : {1, 16}) {
        for (const int64_t d : {64, 128}) {
          for (const int64_t n : {512, 1024, 2048, 4096})
            preset.cases.push_back(square(dtype, 1, heads, n, d, causal));
        }
      }
    }
  }
  return preset;
}

// Lengths as of the models that people train at home, 8 heads of 64, without a mask: queries and
// keys may then differ in number for every peer.
AttentionPreset sweep(std::vector<std::pair<int64_t, int64_t>> pairs) {
  if (pairs.empty()) {
    for (int64_t n = 128; n <= 2048; n *= 2) pairs.emplace_back(n, n);
    for (int64_t n = 128; n <= 2048; n *= 2) pairs.emplace_back(n, n / 2);
    for (int64_t n = 128; n <= 1024; n *= 2) pairs.emplace_back(n, n * 2);
  }
  AttentionPreset preset{"sweep", {}, {AttentionPass::kForward}};
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const auto& [n, m] : pairs) preset.cases.push_back({dtype, 4, 8, n, m, 64, false});
  }
  return preset;
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

at::Tensor hidden_block(int64_t first, int64_t rows, int64_t keys, const at::Device& device) {
  return at::ones({rows, keys}, at::TensorOptions(at::kBool).device(device)).triu(first + 1);
}

// All of (heads, N or M, D) and one dtype, in which all is computed. In blocks of queries.
AttentionOutcome blockwise(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& grad_out, bool causal, bool gradients) {
  const int64_t heads = q.size(0), n = q.size(1), m = k.size(1);
  const int64_t memory = int64_t{1} << (q.is_cuda() ? 33 : 29);  // 8 GiB, 512 MiB
  const int64_t row_bytes = kMatrices * heads * m * static_cast<int64_t>(q.element_size());
  const int64_t rows = std::clamp<int64_t>(memory / row_bytes, 16, n);
  const auto wide = k.options().dtype(at::kDouble);
  at::Tensor grad_k = at::zeros(k.sizes(), wide), grad_v = at::zeros(v.sizes(), wide);
  std::vector<at::Tensor> out, grad_q;
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t count = std::min(rows, n - first);
    // Keys behind the last query of the block are seen by none of it.
    const int64_t keys = causal ? std::min(m, first + count) : m;
    const auto leaf = [&](const at::Tensor& x, int64_t from, int64_t size) {
      return x.narrow(1, from, size).detach().requires_grad_(gradients);
    };
    const auto block_q = leaf(q, first, count), block_k = leaf(k, 0, keys),
               block_v = leaf(v, 0, keys);
    const auto hidden = causal ? hidden_block(first, count, keys, q.device()) : at::Tensor();
    const auto block_out = plain_attention(block_q, block_k, block_v, hidden);
    out.push_back(block_out.detach());
    if (!gradients) continue;
    const auto found = torch::autograd::grad({block_out}, {block_q, block_k, block_v},
                                             {grad_out.narrow(1, first, count)});
    grad_q.push_back(found[0]);
    grad_k.narrow(1, 0, keys).add_(found[1]);
    grad_v.narrow(1, 0, keys).add_(found[2]);
  }
  if (!gradients) return {at::cat(out, 1)};
  const auto dtype = q.scalar_type();
  return {at::cat(out, 1), at::cat(grad_q, 1), grad_k.to(dtype), grad_v.to(dtype)};
}

// The most that rounding to the dtype changes a number of size 1.
double half_ulp(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return std::ldexp(1.0, -8);
    case at::kHalf:
      return std::ldexp(1.0, -11);
    default:
      return std::ldexp(1.0, -24);
  }
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

std::string pass_name(AttentionPass pass) {
  switch (pass) {
    case AttentionPass::kForward:
      return "forward";
    case AttentionPass::kBackward:
      return "backward";
    case AttentionPass::kBoth:
      return "both";
  }
  return "";
}

AttentionPass pass_by_name(const std::string& name) {
  for (const AttentionPass pass : kAllAttentionPasses) {
    if (pass_name(pass) == name) return pass;
  }
  throw UserError(
      str("[bench attention] expected a pass forward, backward or both, got \"", name, "\""));
}

AttentionSize size_of(const AttentionCase& c) {
  AttentionSize size;
  size.batches = c.batch;
  size.heads = size.kv_heads = std::max<int64_t>(c.heads, 1);
  size.n = c.n;
  size.m = c.m;
  size.head_dim = c.head_dim;
  size.causal = c.causal;
  return size;
}

int64_t element_bytes(const AttentionCase& c) { return c.dtype == "fp32" ? 4 : 2; }

double pass_flops(const AttentionCase& c, AttentionPass pass) {
  double flops = 0;
  if (pass != AttentionPass::kBackward) flops += attention_forward_flops(size_of(c));
  if (pass != AttentionPass::kForward) flops += attention_backward_flops(size_of(c));
  return flops;
}

double pass_bytes(const AttentionCase& c, AttentionPass pass) {
  double bytes = 0;
  if (pass != AttentionPass::kBackward)
    bytes += attention_forward_bytes(size_of(c), element_bytes(c));
  if (pass != AttentionPass::kForward)
    bytes += attention_backward_bytes(size_of(c), element_bytes(c));
  return bytes;
}

std::string describe(const AttentionCase& c) {
  return str(c.dtype, " B ", c.batch, c.heads > 0 ? str(" H ", c.heads) : "", " N ", c.n,
             c.m != c.n ? str(" M ", c.m) : "", " D ", c.head_dim, c.causal ? " causal" : "");
}

std::vector<std::string> attention_presets() {
  return {"handout", "throughput", "leaderboard", "sweep", "cpu"};
}

AttentionPreset attention_preset(const std::string& name,
                                 const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  if (name == "handout") return handout();
  if (name == "throughput") return throughput();
  if (name == "leaderboard") {
    return {"leaderboard", {square("bf16", 1, 16, 16384, 64, true)}, {AttentionPass::kBoth}};
  }
  if (name == "sweep") return sweep(pairs);
  if (name == "cpu") return on_the_cpu();
  throw UserError(str("[bench attention] expected preset to be one of ", join(attention_presets()),
                      ", grid, got \"", name, "\""));
}

AttentionPreset filtered(AttentionPreset preset, const AttentionFilter& filter) {
  std::erase_if(preset.cases, [&](const AttentionCase& c) {
    return !is_wanted(filter.dtypes, c.dtype) || !is_wanted(filter.lengths, c.n) ||
           !is_wanted(filter.head_dims, c.head_dim);
  });
  std::erase_if(preset.passes, [&](AttentionPass pass) { return !is_wanted(filter.passes, pass); });
  return preset;
}

at::ScalarType scalar_type(const AttentionCase& c) {
  return c.dtype == "fp32" ? at::kFloat : c.dtype == "bf16" ? at::kBFloat16 : at::kHalf;
}

AttentionInputs random_inputs(const AttentionCase& c, const at::Device& device, uint64_t seed) {
  torch::manual_seed(seed);
  const int64_t heads = std::max<int64_t>(c.heads, 1);
  const auto draw = [&](int64_t rows) {
    return at::randn({c.batch, heads, rows, c.head_dim},
                     at::TensorOptions(at::kFloat).device(device))
        .to(scalar_type(c));
  };
  AttentionInputs inputs;
  inputs.q = draw(c.n);
  inputs.k = draw(c.m);
  inputs.v = draw(c.m);
  inputs.grad_out = draw(c.n);
  return inputs;
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
  std::vector<at::Tensor> narrow, wide;
  for (const auto& x : {inputs.q, inputs.k, inputs.v, inputs.grad_out}) {
    narrow.push_back(some_heads(x));
    wide.push_back(narrow.back().to(at::kDouble));
  }
  oracle_ = blockwise(wide[0], wide[1], wide[2], wide[3], c.causal, gradients);
  const auto formula = blockwise(narrow[0], narrow[1], narrow[2], narrow[3], c.causal, gradients);
  for (size_t i = 0; i < oracle_.size() && oracle_[i].defined() && oracle_[i].numel() > 0; ++i) {
    tolerance_[i] = 2 * largest_of_block(formula[i].to(at::kDouble) - oracle_[i]) +
                    half_ulp(scalar_type(c)) * largest_of_block(oracle_[i]) + kFloatRounding;
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
