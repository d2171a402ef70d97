// AdamW's update and the norm of gradients of all parameters of xl, beside PyTorch's kernels and
// beside what this GPU's memory carries:
//   ops_adamw_bench [LAYERS]     48 unless said; fewer for a GPU with less than 50 GB
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/cuda.h>

#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/stats.h"
#include "flashstep/ops.h"
#include "flashstep/ops/adamw.h"
#include "flashstep/ops/cost.h"

namespace flashstep {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 1'600, kHidden = 6'400, kVocabulary = 10'000;  // xl's
constexpr int kRounds = 10, kCalls = 10;  // calls of a round share one wait for the GPU

std::vector<std::vector<int64_t>> shapes_of_model(int layers) {
  std::vector<std::vector<int64_t>> shapes = {{kVocabulary, kWidth}};
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < 4; ++i) shapes.push_back({kWidth, kWidth});
    shapes.insert(shapes.end(), {{kHidden, kWidth}, {kWidth, kHidden}, {kHidden, kWidth}});
    shapes.insert(shapes.end(), {{kWidth}, {kWidth}});
  }
  shapes.insert(shapes.end(), {{kWidth}, {kVocabulary, kWidth}});
  return shapes;
}

std::vector<Tensor> make_tensors(const std::vector<std::vector<int64_t>>& shapes, double scale,
                                 at::ScalarType dtype) {
  std::vector<Tensor> tensors;
  for (const auto& shape : shapes) {
    tensors.push_back(at::rand(shape, at::TensorOptions(at::kCUDA).dtype(dtype)).mul_(scale));
  }
  return tensors;
}

void print_row(const std::string& what, double bytes, double copy_rate,
               const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    torch::cuda::synchronize();
    const double start = measure::steady_seconds();
    for (int call = 0; call < kCalls; ++call) work();
    torch::cuda::synchronize();
    if (round > 0) seconds.push_back((measure::steady_seconds() - start) / kCalls);
  }
  const double median = measure::median(seconds);
  std::printf("%-44s %9.3f %9.3f %9.3f %9.0f %7.1f\n", what.c_str(), median * 1e3,
              measure::quantile(seconds, 0.1) * 1e3, measure::quantile(seconds, 0.9) * 1e3,
              bytes / median * 1e-9, 100 * bytes / median / copy_rate);
}

void run(int layers) {
  const auto shapes = shapes_of_model(layers);
  AdamWTensors tensors;
  tensors.parameters = make_tensors(shapes, 0.02, at::kFloat);
  tensors.exp_avgs = make_tensors(shapes, 1e-4, at::kFloat);
  tensors.exp_avg_sqs = make_tensors(shapes, 1e-6, at::kFloat);
  const auto narrow = make_tensors(shapes, 1e-3, at::kBFloat16);
  const auto wide = make_tensors(shapes, 1e-3, at::kFloat);
  const auto copies = make_tensors(shapes, 0.02, at::kBFloat16);
  int64_t numel = 0;
  for (const Tensor& parameter : tensors.parameters) {
    numel += parameter.numel();
    tensors.steps.push_back(at::zeros({}, at::TensorOptions(at::kCUDA).dtype(at::kFloat)));
  }
  AdamWSettings settings;
  settings.learning_rate = at::full({}, 1e-4, tensors.steps.front().options());
  settings.skip = at::zeros({}, tensors.steps.front().options());

  const double copy_rate = measure::measure_gpu_bandwidth().copy;
  std::printf("%s, %zu tensors, %.3f G parameters; copy kernel %.0f GB/s, which is 100 %%\n",
              measure::list_gpus().front().name.c_str(), shapes.size(),
              static_cast<double>(numel) * 1e-9, copy_rate * 1e-9);
  std::printf("%-44s %9s %9s %9s %9s %7s\n", "", "median ms", "p10", "p90", "GB/s", "%");
  const Tensor source = at::zeros({numel}, copies.front().options()), target = source.clone();
  print_row("cudaMemcpyAsync, as much as gradients", 2.0 * static_cast<double>(source.nbytes()),
            copy_rate, [&] { target.copy_(source); });

  print_row("grad_norm, bf16", grad_norm_bytes(numel, 2), copy_rate, [&] { grad_norm(narrow); });
  print_row("PyTorch: foreach_norm, bf16", grad_norm_bytes(numel, 2), copy_rate,
            [&] { grad_norm_reference(narrow); });
  print_row("grad_norm, fp32", grad_norm_bytes(numel, 4), copy_rate, [&] { grad_norm(wide); });
  print_row("PyTorch: foreach_norm, fp32", grad_norm_bytes(numel, 4), copy_rate,
            [&] { grad_norm_reference(wide); });

  settings.norm = grad_norm(narrow);
  settings.max_norm = 1;
  const auto row = [&](const std::string& what, const std::vector<Tensor>& gradients, bool copied) {
    tensors.gradients = gradients;
    tensors.copies = copied ? copies : std::vector<Tensor>();
    print_row(what, adamw_bytes(numel, gradients.front().element_size(), copied ? 2 : 0), copy_rate,
              [&] { adamw(tensors, settings); });
  };
  row("adamw, bf16 gradients and copies, clipping", narrow, true);
  row("adamw, bf16 gradients, clipping", narrow, false);
  row("adamw, fp32 gradients, bf16 copies, clipping", wide, true);
  row("adamw, fp32 gradients, clipping", wide, false);
  settings.norm = Tensor();
  print_row("PyTorch: _fused_adamw_, fp32 gradients", adamw_bytes(numel, 4, 0), copy_rate,
            [&] { adamw_reference(tensors, settings); });
  print_row("PyTorch: foreach_mul, fp32 gradients", 2 * grad_norm_bytes(numel, 4), copy_rate,
            [&] { at::_foreach_mul_(wide, settings.learning_rate); });
}

}  // namespace
}  // namespace flashstep

int main(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    std::fprintf(stderr, "[ops_adamw_bench] expected a GPU that LibTorch can use, got none\n");
    return 1;
  }
  const int layers = argc > 1 ? std::atoi(argv[1]) : 48;
  if (layers < 1) {
    std::fprintf(stderr, "[ops_adamw_bench] expected at least 1 layer, got %s\n", argv[1]);
    return 2;
  }
  flashstep::run(layers);
  return 0;
}
