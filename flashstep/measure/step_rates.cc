#include "flashstep/measure/step_rates.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/measure/data_sheet.h"

namespace flashstep::measure {
namespace {

constexpr double kGiB = 1073741824.0;
constexpr const char* kMeasured = "H200";

// At the power limit of 700 W, as steps are: products sustained (of 8 bits by steps of four models,
// training_step_h200/float8); memory as kernels and copies reach
// it; link by copies of 200 MB; kernels from steps of 12 and 48 blocks. reports/limits_h200,
// training_step_h200, attention_h200 (sweep.md; warpgroups).
const StepRates kH200 = {.products = 660e12,
                         .products_of_8_bits = 1200e12,
                         .memory = 3.9e12,
                         .link = 370e9,
                         .kernel_s = 1.6e-6,
                         .attention = {570e12, 470e12, 745e12, 510e12, 1000},
                         .is_measured = true,
                         .source = "an H200's rates, measured"};

double between(double at_64, double at_128, int64_t head_dim) {
  const double place = (static_cast<double>(head_dim) - 64) / 64;
  return at_64 + std::clamp(place, 0.0, 1.0) * (at_128 - at_64);
}

AttentionRates times(const AttentionRates& rates, double factor) {
  return {rates.forward_64 * factor, rates.backward_64 * factor, rates.forward_128 * factor,
          rates.backward_128 * factor, rates.half_length};
}

}  // namespace

double AttentionRates::forward(int64_t head_dim, int64_t n) const {
  return at_length(between(forward_64, forward_128, head_dim), n);
}

double AttentionRates::backward(int64_t head_dim, int64_t n) const {
  return at_length(between(backward_64, backward_128, head_dim), n);
}

std::optional<StepRates> step_rates(const std::string& gpu_name) {
  const auto sheet = find_data_sheet(gpu_name);
  const auto link = find_link_sheet(gpu_name);
  if (!sheet || !link) return std::nullopt;
  if (sheet->name == std::string(kMeasured)) return kH200;
  const DataSheet known = *find_data_sheet(kMeasured);
  const double faster = sheet->bf16 / known.bf16;
  StepRates rates = kH200;
  rates.products *= faster;
  const bool has_8_bits = !std::string(sheet->name).starts_with("A100");  // capability 8.0
  rates.products_of_8_bits *= has_8_bits ? faster : 0;
  rates.memory *= sheet->memory_bytes_per_s / known.memory_bytes_per_s;
  rates.link *= link->bytes_per_s / find_link_sheet(kMeasured)->bytes_per_s;
  rates.attention = times(rates.attention, faster);
  rates.is_measured = false;
  rates.source = str("not measured on ", sheet->name, ": an H200's rates by the data sheets");
  return rates;
}

// Makers' gigabytes of memory are 2^30; of an H200's 141 CUDA gives 139.80
// (reports/full_sharding_h200/8B/train.txt).
std::optional<double> gpu_memory_bytes(const std::string& gpu_name) {
  const auto sheet = find_data_sheet(gpu_name);
  if (!sheet) return std::nullopt;
  return sheet->memory_gb * (139.80 / 141) * kGiB;
}

// 138.93 GiB in use, of which 137.36 are LibTorch's: the same run.
double gpu_context_bytes() { return 1.57 * kGiB; }

// Of six runs on H200s with segments that grow, whose memory nvidia-smi showed
// (reports/full_sharding_h200): 0.4 (xl, one GPU) to 3.3 GiB (8B, float32 weights) off.
double allocator_reserve_bytes(double step_bytes) { return 1.5 * kGiB + 0.08 * step_bytes; }

}  // namespace flashstep::measure
