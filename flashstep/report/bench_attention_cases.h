// What `flashstep bench attention` measures: the cases of its presets.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/attention/cost.h"

namespace flashstep::report {

enum class AttentionPass { kForward, kBackward, kBoth };
std::string pass_name(AttentionPass pass);  // "forward", "backward", "both"
AttentionPass pass_by_name(const std::string& name);

struct AttentionCase {
  std::string dtype;  // "fp32", "bf16", "fp16"
  int64_t batch = 1;
  int64_t heads = 1;  // 0: tensors without a dimension for heads, (B, N, D)
  int64_t n = 0, m = 0, head_dim = 0;
  bool causal = false;

  bool operator==(const AttentionCase&) const = default;
};

// For the cost formulas, where no heads are one head.
AttentionSize size_of(const AttentionCase& c);
int64_t element_bytes(const AttentionCase& c);
double pass_flops(const AttentionCase& c, AttentionPass pass);
double pass_bytes(const AttentionCase& c, AttentionPass pass);

// "bf16 B 1 H 1 N 1024 D 64 causal", with M where it differs from N.
std::string describe(const AttentionCase& c);

struct AttentionPreset {
  std::string name;
  std::vector<AttentionCase> cases;
  std::vector<AttentionPass> passes;
};

// "handout", "throughput", "leaderboard", "sweep", "cpu": measured case by case. ("grid" is a
// report of its own: bench_attention_grid.h.)
std::vector<std::string> attention_presets();

// UserError for an unknown name. `pairs` (N, M) replace those of "sweep".
AttentionPreset attention_preset(const std::string& name,
                                 const std::vector<std::pair<int64_t, int64_t>>& pairs = {});

// Which cases of a preset are measured; what is empty leaves nothing out.
struct AttentionFilter {
  std::vector<std::string> dtypes;
  std::vector<int64_t> lengths;  // N
  std::vector<int64_t> head_dims;
  std::vector<AttentionPass> passes;
};
AttentionPreset filtered(AttentionPreset preset, const AttentionFilter& filter);

}  // namespace flashstep::report
