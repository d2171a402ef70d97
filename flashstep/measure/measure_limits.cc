// The measuring itself, through LibTorch: the same matrix products that models are made of.
#include <algorithm>
#include <unistd.h>

#include <torch/types.h>

#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/loopback.h"
#include "flashstep/measure/stats.h"
#include "flashstep/products/cpu_product.h"

namespace flashstep::measure {
namespace {

// Random numbers that leave LibTorch's own generators alone: a training run that measures first
// must draw the same numbers as one that finds the cache.
at::Tensor random_matrix(int64_t n, at::ScalarType dtype, const at::Device& device) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(/*seed_in=*/1);
  // 256 rows, repeated: drawing 8192 x 8192 numbers on a CPU would take longer than the products.
  const at::Tensor rows = at::randn({256, n}, generator, at::kFloat);
  return rows.to(device, dtype).repeat({n / 256, 1});
}

// cuBLAS may use TF32 for fp32 inputs, or not; put back afterwards.
class Tf32Guard {
 public:
  explicit Tf32Guard(bool allow) : before_(at::globalContext().allowTF32CuBLAS()) {
    at::globalContext().setAllowTF32CuBLAS(allow);
  }
  ~Tf32Guard() { at::globalContext().setAllowTF32CuBLAS(before_); }
  Tf32Guard(const Tf32Guard&) = delete;
  Tf32Guard& operator=(const Tf32Guard&) = delete;

 private:
  bool before_;
};

void note_rate(Limit& limit, double work, const std::vector<double>& seconds,
               const std::string& method) {
  const double rate = work / quantile(seconds, 0.1);
  if (rate <= limit.rate) return;
  limit.rate = rate;
  limit.median_rate = work / median(seconds);
  limit.method = str(method, ", ", seconds.size(), " calls");
}

// Products of growing size, until the next one (8 times the work) would take longer than
// `kLongest`.
Limit matmul_limit(const at::Device& device, const std::string& dtype_name, at::ScalarType dtype) {
  constexpr double kLongest = 0.06;  // s
  constexpr int64_t kLargest = 8192;
  // On a busy machine a small product, whose threads wait for each other, says nothing of a large
  // one; fp16 is left there early, because most CPUs compute it one by one, a thousand times
  // slower.
  const int64_t always = dtype == at::kHalf ? 256 : 1024;
  constexpr double kHopeless = 0.5;  // s
  const Tf32Guard tf32(dtype_name == "tf32");
  Limit limit{device.is_cuda() ? "cuda" : "cpu", "matmul " + dtype_name, 0, 0, ""};
  for (int64_t n = 256; n <= kLargest; n *= 2) {
    const at::Tensor a = random_matrix(n, dtype, device), b = random_matrix(n, dtype, device);
    at::Tensor product = at::empty_like(a);
    const auto seconds = time_calls(
        [&] {
          if (device.is_cpu()) return flashstep::internal::cpu_product(a, b, product);
          at::mm_out(product, a, b);
          synchronize_gpu(device.index());
        },
        {.warmup = 1, .min_calls = 3, .max_calls = 30, .max_seconds = 0.15});
    const double size = static_cast<double>(n);
    note_rate(limit, 2 * size * size * size, seconds, str(n, " x ", n, " x ", n));
    const double next = 8 * quantile(seconds, 0);
    if (n >= always ? next > kLongest : next > kHopeless) break;
  }
  return limit;
}

// STREAM's triad, a = b + s c (McCalpin 1995): two numbers read and one written an element; what
// the processor reads to fill a's cache lines before it writes them is not counted.
Limit triad_limit() {
  const int64_t memory = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  const int64_t cache = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  // Each array as large as the last cache, within what is quick and 1/24 of the memory.
  const int64_t bytes = std::min(std::clamp<int64_t>(cache, 64 << 20, 256 << 20), memory / 24);
  const int64_t count = bytes / 4;
  at::Tensor a = at::zeros({count}), b = at::ones({count}), c = at::ones({count});
  const auto seconds =
      time_calls([&] { at::add_out(a, b, c, 3.0); },
                 {.warmup = 2, .min_calls = 5, .max_calls = 40, .max_seconds = 0.4});
  Limit limit{"cpu", "memory triad", 0, 0, ""};
  note_rate(limit, 12.0 * static_cast<double>(count), seconds,
            str("3 arrays of ", human_bytes(static_cast<uint64_t>(4 * count))));
  return limit;
}

Limit link_limit(const std::string& name, const std::vector<double>& rates,
                 const std::string& method) {
  return {"link", name, quantile(rates, 0.9), median(rates), method};
}

std::vector<Limit> link_limits() {
  constexpr int kWindows = 20;
  constexpr double kWindowSeconds = 0.02;
  std::vector<Limit> limits = {link_limit("loopback", measure_loopback(kWindows, kWindowSeconds),
                                          "one TCP stream, 1 MiB a call")};
  if (list_gpus().size() < 2) return limits;
  const std::vector<double> rates = measure_gpu_link(0, 1);
  if (!rates.empty())
    limits.push_back(
        link_limit("GPU to GPU", rates, "copies of 256 MiB, 0 to 1 and 1 to 0 at once"));
  release_cached_gpu_memory();  // leaves no trace in the run that follows
  for (const int gpu : {0, 1}) reset_gpu_peak_allocated(gpu);
  return limits;
}

}  // namespace

std::vector<Limit> measure_limits(const std::string& device_name) {
  const at::NoGradGuard no_grad;
  std::vector<Limit> limits;
  if (device_name == "cpu") {
    const at::Device cpu(at::kCPU);
    limits.push_back(matmul_limit(cpu, "fp32", at::kFloat));
    limits.push_back(matmul_limit(cpu, "bf16", at::kBFloat16));
    limits.push_back(matmul_limit(cpu, "fp16", at::kHalf));
    limits.push_back(triad_limit());
    return limits;
  }
  if (device_name == "link") return link_limits();
  const at::Device gpu(at::kCUDA, 0);
  limits.push_back(matmul_limit(gpu, "fp32", at::kFloat));
  limits.push_back(matmul_limit(gpu, "tf32", at::kFloat));
  limits.push_back(matmul_limit(gpu, "bf16", at::kBFloat16));
  limits.push_back(matmul_limit(gpu, "fp16", at::kHalf));
  const GpuBandwidth bandwidth = measure_gpu_bandwidth(gpu.index());
  limits.push_back({"cuda", "memory copy", bandwidth.copy, bandwidth.copy, "float4 copy kernel"});
  limits.push_back({"cuda", "memory read", bandwidth.read, bandwidth.read, "float4 read kernel"});
  release_cached_gpu_memory();  // leaves no trace in the run that follows
  reset_gpu_peak_allocated(gpu.index());
  return limits;
}

}  // namespace flashstep::measure
