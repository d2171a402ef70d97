#include "flashstep/report/bench_allreduce_pattern.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "flashstep/error.h"

namespace flashstep::report {
namespace {

// Elements that are compared, or written, at a time: the rest of the memory is the buffer's.
constexpr int64_t kChunk = int64_t{1} << 22;

// factor (i mod p + 1) for the first elements; whole periods, so that it holds for every chunk.
at::Tensor pattern(const at::Tensor& like, int64_t period, int64_t factor) {
  const int64_t length = std::min(like.numel(), kChunk) / period * period + period;
  const auto options = at::TensorOptions(at::kLong).device(like.device());
  return (at::arange(length, options).remainder(period).add_(1).mul_(factor))
      .to(like.scalar_type());
}

}  // namespace

at::ScalarType element_type(const std::string& dtype) {
  if (dtype == "fp32") return at::kFloat;
  if (dtype == "bf16") return at::kBFloat16;
  require(dtype == "fp16", "[bench allreduce] expected dtype fp32, bf16 or fp16, got \"", dtype,
          "\"");
  return at::kHalf;
}

int64_t element_bytes(const std::string& dtype) {
  return static_cast<int64_t>(c10::elementSize(element_type(dtype)));
}

int64_t pattern_period(const std::string& dtype, int64_t ranks) {
  // Whole numbers up to 2^(bits of the significand) are exact: 24, 8 and 11 bits.
  const at::ScalarType type = element_type(dtype);
  const int64_t exact = int64_t{1} << (type == at::kFloat ? 24 : type == at::kHalf ? 11 : 8);
  const int64_t most = exact / (ranks * (ranks + 1) / 2);
  for (const int64_t prime : {251, 31, 13, 7, 5, 3}) {
    if (prime <= most) return prime;
  }
  throw UserError(str("[bench allreduce] expected few enough ranks for exact sums in ", dtype,
                      ", got ", ranks));
}

void fill_pattern(at::Tensor buffer, const std::string& dtype, int64_t ranks, int64_t rank) {
  const at::Tensor source = pattern(buffer, pattern_period(dtype, ranks), rank + 1);
  for (int64_t begin = 0; begin < buffer.numel(); begin += source.numel()) {
    const int64_t length = std::min(source.numel(), buffer.numel() - begin);
    buffer.narrow(0, begin, length).copy_(source.narrow(0, 0, length));
  }
}

int64_t count_wrong(const at::Tensor& buffer, const std::string& dtype, int64_t ranks) {
  const at::Tensor sum = pattern(buffer, pattern_period(dtype, ranks), ranks * (ranks + 1) / 2);
  int64_t wrong = 0;
  for (int64_t begin = 0; begin < buffer.numel(); begin += sum.numel()) {
    const int64_t length = std::min(sum.numel(), buffer.numel() - begin);
    wrong += buffer.narrow(0, begin, length)
                 .ne(sum.narrow(0, 0, length))  // NaN differs from everything
                 .sum()
                 .item<int64_t>();
  }
  return wrong;
}

}  // namespace flashstep::report
