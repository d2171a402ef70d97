#include "flashstep/report/bench_attention_cases.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::report {
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

template <typename Value>
bool wanted(const std::vector<Value>& among, const Value& value) {
  return among.empty() || std::find(among.begin(), among.end(), value) != among.end();
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
    return !wanted(filter.dtypes, c.dtype) || !wanted(filter.lengths, c.n) ||
           !wanted(filter.head_dims, c.head_dim);
  });
  std::erase_if(preset.passes, [&](AttentionPass pass) { return !wanted(filter.passes, pass); });
  return preset;
}

}  // namespace flashstep::report
