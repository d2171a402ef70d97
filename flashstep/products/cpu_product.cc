#include "flashstep/products/cpu_product.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/record_function.h>

namespace at::native {
// d = alpha a b + beta d by oneDNN. LibTorch exports it, and installs no header for it.
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& d, float beta, float alpha);
}  // namespace at::native

namespace flashstep::internal {
namespace {

// AMD's Zen 5 and later, where the system saves the registers of 512 bits.
bool has_wide_units_of_amd() {
#if defined(__x86_64__)
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__builtin_cpu_supports("avx512f") || __get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0)
    return false;
  char vendor[12];
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  if (std::memcmp(vendor, "AuthenticAMD", sizeof vendor) != 0) return false;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned int family = ((eax >> 8) & 0xf) + ((eax >> 20) & 0xff);
  return family >= 0x1a;
#else
  return false;
#endif
}

// Below, a call of oneDNN costs more than it saves.
constexpr int64_t kLeastSide = 64, kLeastProducts = 2 << 20;

}  // namespace

std::string onednn_isa() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "";
}

bool onednn_is_faster() {
  // Limited, it may be limited to narrower instructions.
  static const bool is_faster =
      at::hasMKL() && at::hasMKLDNN() && has_wide_units_of_amd() && onednn_isa().empty();
  return is_faster && at::globalContext().userEnabledMkldnn();
}

bool takes_onednn(int64_t m, int64_t k, int64_t n) {
  return std::min({m, k, n}) >= kLeastSide && m * k * n >= kLeastProducts && onednn_is_faster();
}

void cpu_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, double alpha,
                 double beta) {
  const at::NoGradGuard no_grad;
  const bool is_float32 = a.scalar_type() == at::kFloat;
  if (!is_float32 || !takes_onednn(a.size(0), a.size(1), b.size(1))) {
    at::Tensor result = d;
    at::addmm_out(result, d, a, b, beta, alpha);
    return;
  }
  onednn_product(a, b, d, alpha, beta);
}

void onednn_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, double alpha,
                    double beta) {
  RECORD_FUNCTION("flashstep::mm", std::vector<c10::IValue>({a, b}));  // a name that profilers know
  at::native::mkldnn_matmul(a, b, d, static_cast<float>(beta), static_cast<float>(alpha));
}

}  // namespace flashstep::internal
