#include "flashstep/products/cpu_product.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>

#include "flashstep/products/cpu/packed.h"

namespace at::native {
// d = alpha a b + beta d by oneDNN. LibTorch exports it, and installs no header for it.
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& d, float beta, float alpha);
}  // namespace at::native

namespace flashstep::internal {
namespace {

// The family of an AMD processor, or 0: 17h Zen 1 and 2, 19h Zen 3 and 4, 1Ah Zen 5.
unsigned int amd_family() {
#if defined(__x86_64__)
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return 0;
  char vendor[12];
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  if (std::memcmp(vendor, "AuthenticAMD", sizeof vendor) != 0) return 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return 0;
  return ((eax >> 8) & 0xf) + ((eax >> 20) & 0xff);
#else
  return 0;
#endif
}

// Where the system saves the registers of 512 bits.
bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

// Below, a call costs more than it saves.
constexpr int64_t kLeastSide = 64, kLeastProducts = 2 << 20;

// How threads share d: rows x columns parts, each of whole tiles.
struct Grid {
  int64_t rows, columns, part_rows, part_columns;
};

// The grid whose largest part takes least: its products, and what it packs, at a step of the depth.
Grid grid_of(int64_t m, int64_t k, int64_t n) {
  constexpr int64_t kLeastPart = 1 << 20;  // products: 20 us, several starts of a thread
  constexpr int64_t kPacking = 6;          // products, in the time that an element's packing takes
  const int64_t parts = std::clamp<int64_t>(m * k * n / kLeastPart, 1, at::get_num_threads());
  const auto whole = [](int64_t size, int64_t of, int64_t unit) {
    return (size + of * unit - 1) / (of * unit) * unit;
  };
  Grid best{};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t rows = 1; rows <= parts; ++rows) {
    const int64_t columns = parts / rows;
    const int64_t height = whole(m, rows, packed::kTileRows);
    const int64_t width = whole(n, columns, packed::kTileColumns);
    const int64_t cost = height * width + kPacking * (height + width);
    if (cost < least) {
      least = cost;
      best = {rows, columns, height, width};
    }
  }
  return best;
}

}  // namespace

std::string onednn_isa() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "";
}

CpuMultiplier cpu_multiplier() {
  static const unsigned int family = amd_family();
  static const bool takes_packed = at::hasMKL() && packed::is_available() &&
                                   (family == 0x19 || (family >= 0x17 && !has_avx512()));
  // Limited, oneDNN may be limited to narrower instructions.
  static const bool takes_onednn =
      at::hasMKL() && at::hasMKLDNN() && family >= 0x1a && has_avx512() && onednn_isa().empty();
  if (takes_packed) return CpuMultiplier::kPacked;
  const bool is_allowed = takes_onednn && at::globalContext().userEnabledMkldnn();
  return is_allowed ? CpuMultiplier::kOneDnn : CpuMultiplier::kMkl;
}

CpuMultiplier cpu_multiplier(int64_t m, int64_t k, int64_t n) {
  const bool is_small = std::min({m, k, n}) < kLeastSide || m * k * n < kLeastProducts;
  return is_small ? CpuMultiplier::kMkl : cpu_multiplier();
}

void cpu_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, bool adds) {
  const at::NoGradGuard no_grad;
  const auto by = a.scalar_type() == at::kFloat ? cpu_multiplier(a.size(0), a.size(1), b.size(1))
                                                : CpuMultiplier::kMkl;
  if (by == CpuMultiplier::kOneDnn) return onednn_product(a, b, d, adds);
  if (by == CpuMultiplier::kPacked) return packed_product(a, b, d, adds);
  at::Tensor result = d;
  at::addmm_out(result, d, a, b, adds ? 1 : 0);
}

void onednn_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, bool adds) {
  RECORD_FUNCTION("flashstep::mm", std::vector<c10::IValue>({a, b}));  // a name that profilers know
  at::native::mkldnn_matmul(a, b, d, /*beta=*/adds ? 1 : 0, /*alpha=*/1);
}

void packed_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, bool adds) {
  RECORD_FUNCTION("flashstep::mm", std::vector<c10::IValue>({a, b}));
  const auto view = [](const at::Tensor& x, int64_t row, int64_t column) {
    const int64_t first = row * x.stride(0) + column * x.stride(1);
    return packed::Matrix{x.const_data_ptr<float>() + first, x.stride(0), x.stride(1)};
  };
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  float* const out = d.mutable_data_ptr<float>();
  const Grid grid = grid_of(m, k, n);
  at::parallel_for(0, grid.rows * grid.columns, 1, [&](int64_t begin, int64_t end) {
    // Kept, because the system gives new memory a page at a time.
    thread_local const at::DataPtr workspace =
        c10::GetCPUAllocator()->allocate(packed::kWorkspaceBytes);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t row = part / grid.columns * grid.part_rows;
      const int64_t column = part % grid.columns * grid.part_columns;
      const int64_t rows = std::min(grid.part_rows, m - row);
      const int64_t columns = std::min(grid.part_columns, n - column);
      if (rows <= 0 || columns <= 0) continue;
      packed::multiply({view(a, row, 0), view(b, 0, column), out + row * d.stride(0) + column,
                        d.stride(0), rows, columns, k, adds},
                       static_cast<float*>(workspace.get()));
    }
  });
}

}  // namespace flashstep::internal
