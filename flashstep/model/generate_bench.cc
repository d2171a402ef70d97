// Time of a token of generate(), batch 1, beside what reading the weights once takes this GPU:
//   model_generate_bench [NAME...]     of the cases below; all unless said
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <torch/cuda.h>

#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/stats.h"
#include "flashstep/model.h"
#include "flashstep/model/generate.h"

namespace flashstep {
namespace {

struct Case {
  const char* name;
  int64_t d_model, d_ff, num_layers, num_heads, num_kv_heads, vocab_size;
  bool is_tied;
};

constexpr Case kCases[] = {{"small", 768, 3'072, 12, 12, 12, 10'000, false},
                           {"xl", 1'600, 6'400, 48, 25, 25, 10'000, false},
                           {"llama-1B", 2'048, 8'192, 16, 32, 8, 128'256, true},
                           {"qwen-1.5B", 1'536, 8'960, 28, 12, 2, 151'936, true},
                           {"llama-8B", 4'096, 14'336, 32, 32, 8, 128'256, false}};
constexpr int64_t kTokens = 192, kWarmUp = 32;

// Median seconds of a token behind `given` tokens.
double seconds_of_a_token(Transformer& model, int64_t given, double temperature) {
  std::vector<double> seconds;
  double before = measure::steady_seconds();
  GenerateOptions options;
  options.max_tokens = kTokens;
  options.temperature = temperature;
  options.top_p = 0.95;
  options.on_token = [&](int64_t /*token*/) {
    const double now = measure::steady_seconds();
    seconds.push_back(now - before);
    before = now;
    return true;
  };
  generate(model, std::vector<int64_t>(given, 1), options);
  seconds.erase(seconds.begin(), seconds.begin() + kWarmUp);
  return measure::median(seconds);
}

void run(const Case& sizes, at::ScalarType dtype, double bytes_per_second) {
  ModelConfig config;
  config.vocab_size = sizes.vocab_size;
  config.context_length = 8'192;
  config.d_model = sizes.d_model;
  config.d_ff = sizes.d_ff;
  config.num_layers = sizes.num_layers;
  config.num_heads = sizes.num_heads;
  config.num_kv_heads = sizes.num_kv_heads;
  config.tie_embeddings = sizes.is_tied;
  Transformer model(config, /*seed=*/0, at::TensorOptions(at::kCUDA).dtype(dtype));
  model->eval();
  double weights = 0;
  for (const at::Tensor& parameter : model->parameters())
    weights += static_cast<double>(parameter.nbytes());
  if (!sizes.is_tied) weights -= static_cast<double>(model->token_embeddings->weight.nbytes());
  for (const int64_t given : {128, 7'680}) {
    const auto of_a_position = 2.0 * static_cast<double>(config.num_layers * config.kv_width()) *
                               static_cast<double>(c10::elementSize(dtype));
    const double limit = (weights + of_a_position * static_cast<double>(given)) / bytes_per_second;
    for (const double temperature : {0.0, 1.0}) {
      const double seconds = seconds_of_a_token(model, given, temperature);
      std::printf("%-10s %-8s %6lld %5.1f %9.3f %9.3f %8.0f\n", sizes.name,
                  dtype == at::kFloat ? "fp32" : "bf16", static_cast<long long>(given), temperature,
                  seconds * 1e3, limit * 1e3, 1 / seconds);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace flashstep

int main(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    std::fprintf(stderr, "[model_generate_bench] expected a GPU that LibTorch can use, got none\n");
    return 1;
  }
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  const double rate = flashstep::measure::measure_gpu_bandwidth().read;
  std::printf("%s, reads %.0f GB/s\n", flashstep::measure::list_gpus().front().name.c_str(),
              rate * 1e-9);
  std::printf("%-10s %-8s %6s %5s %9s %9s %8s\n", "model", "weights", "prompt", "T", "ms", "limit",
              "tokens/s");
  for (const auto& sizes : flashstep::kCases) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), sizes.name) == wanted.end())
      continue;
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
      flashstep::run(sizes, dtype, rate);
  }
  return 0;
}
