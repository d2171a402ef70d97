// What share of a copy's bandwidth the CUDA kernels reach at xl's widths:
//   ops_cuda_kernels_bench [rows]     16,384 rows unless said
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <vector>

#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/stats.h"
#include "flashstep/measure/table.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"

namespace flashstep {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 1600, kInner = 6400, kHeads = 25, kHeadDim = 64, kClasses = 10000;
constexpr int kCalls = 40, kTurns = 9;

// Seconds a call, median over turns; each call is of another set of tensors (L2 is cold).
double seconds_of(const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int turn = 0; turn < kTurns; ++turn) {
    torch::cuda::synchronize();
    const double begin = measure::steady_seconds();
    for (int i = 0; i < kCalls; ++i) call();
    torch::cuda::synchronize();
    seconds.push_back((measure::steady_seconds() - begin) / kCalls);
  }
  return measure::median(seconds);
}

void bench(int64_t rows) {
  const auto bf16 = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const auto f32 = bf16.dtype(at::kFloat);
  measure::Table table;
  table.title = str("CUDA kernels, bfloat16, ", rows, " rows");
  table.columns = {measure::text_column("kernel"), measure::number_column("traffic", "MB", 1),
                   measure::number_column("time", "us", 1),
                   measure::number_column("bandwidth", "GB/s", 0),
                   measure::number_column("of a copy", "%", 1)};
  double copy = 0;
  const auto add = [&](const char* name, double bytes, const std::function<void()>& call) {
    const double seconds = seconds_of(call), rate = bytes / seconds;
    if (copy == 0) copy = rate;
    table.add_row({name, bytes * 1e-6, seconds * 1e6, rate * 1e-9, 100 * rate / copy});
  };
  const double tc = static_cast<double>(rows * kWidth), tf = static_cast<double>(rows * kInner),
               tv = static_cast<double>(rows * kClasses);

  const Tensor from = torch::empty({int64_t{1} << 29}, bf16), to = torch::empty_like(from);
  add("copy of 1 GiB", 4.0 * static_cast<double>(from.numel()), [&] { to.copy_(from); });

  const Tensor x = torch::randn({rows, kWidth}, bf16), dy = torch::randn({rows, kWidth}, bf16),
               y = torch::empty_like(x), dx = torch::empty_like(x);
  const Tensor x32 = x.to(at::kFloat), dx32 = torch::empty_like(x32);
  const Tensor weight = torch::ones({kWidth}, f32), rstd = torch::empty({rows}, f32);
  add("rms_norm", 4 * tc, [&] { internal::rms_norm_forward_cuda(x, weight, 1e-5, y, rstd); });
  add("rms_norm backward", 6 * tc,
      [&] { internal::rms_norm_backward_cuda(x, weight, rstd, dy, {}, dx); });
  add("rms_norm backward + residual", 8 * tc,
      [&] { internal::rms_norm_backward_cuda(x, weight, rstd, dy, y, dx); });
  add("rms_norm of float32", 6 * tc,
      [&] { internal::rms_norm_forward_cuda(x32, weight, 1e-5, y, rstd); });
  add("rms_norm backward of float32", 10 * tc,
      [&] { internal::rms_norm_backward_cuda(x32, weight, rstd, dy, {}, dx32); });

  const int64_t positions = 1024;
  const RotaryTables tables = rotary_tables(positions, kHeadDim, 10000.0).to(at::kCUDA);
  const Tensor heads = x.view({-1, positions, kHeads, kHeadDim}).transpose(1, 2);
  const Tensor turned = y.view({-1, positions, kHeads, kHeadDim}).transpose(1, 2);
  add("rope", 4 * tc, [&] { internal::rope_cuda(heads, tables.cos, tables.sin, false, turned); });

  const Tensor both = torch::randn({rows, 2 * kInner}, bf16), dboth = torch::empty_like(both);
  const Tensor h = torch::empty({rows, kInner}, bf16), dh = torch::randn({rows, kInner}, bf16);
  const auto half = [](const Tensor& t, int64_t i) { return t.narrow(1, i * kInner, kInner); };
  add("swiglu", 6 * tf, [&] { internal::swiglu_forward_cuda(half(both, 0), half(both, 1), h); });
  add("swiglu backward", 10 * tf, [&] {
    internal::swiglu_backward_cuda(half(both, 0), half(both, 1), dh, half(dboth, 0),
                                   half(dboth, 1));
  });
  add("swiglu backward, and y again", 12 * tf, [&] {
    internal::swiglu_backward_cuda(half(both, 0), half(both, 1), dh, half(dboth, 0), half(dboth, 1),
                                   h);
  });

  const Tensor logits = torch::randn({rows, kClasses}, bf16), dlogits = torch::empty_like(logits);
  const Tensor targets = torch::randint(kClasses, {rows}, f32.dtype(at::kLong));
  const Tensor losses = torch::empty({rows}, f32), normalizers = torch::empty({rows, 2}, f32);
  const Tensor counted = internal::counted_cuda(targets);
  add("cross_entropy", 2 * tv,
      [&] { internal::cross_entropy_cuda(logits, targets, counted, losses, normalizers); });
  add("cross_entropy and its gradient", 4 * tv,
      [&] { internal::cross_entropy_cuda(logits, targets, counted, losses, {}, dlogits); });
  add("cross_entropy backward", 4 * tv, [&] {
    internal::cross_entropy_backward_cuda(logits, targets, normalizers, counted, losses, dlogits);
  });
  std::cout << to_text(table);
}

}  // namespace
}  // namespace flashstep

int main(int count, char** arguments) {
  if (!torch::cuda::is_available()) {
    std::puts("no GPU that LibTorch can use");
    return 0;
  }
  const torch::NoGradGuard no_grad;
  flashstep::bench(count > 1 ? std::atoll(arguments[1]) : 16384);
}
