// Matrix products on a CPU: by LibTorch's MKL, its oneDNN or our own kernel, whichever is fastest.
#pragma once

#include <string>

#include <torch/types.h>

namespace flashstep::internal {

// What the user allows oneDNN to use, ONEDNN_MAX_CPU_ISA; empty: everything.
std::string onednn_isa();

enum class CpuMultiplier { kMkl, kOneDnn, kPacked };

// Who multiplies float32 on this processor. Only on AMD's is MKL not the fastest. Zen 5 reaches
// twice its rate by oneDNN, since MKL computes with 256 bits on processors that are not Intel's.
// Zen 3 reaches 1.1 to 1.6 times its rate by packed_product(), and 0.95 to 1.4 times for dy^T x;
// who has AVX2 alone, as it has, does the same unmeasured. Zen 4, whose units have 256 bits, 1.06
// to 1.27 times (ops_cpu_product_bench compares them).
CpuMultiplier cpu_multiplier();

// Who computes cpu_product() of float32, (m, k) by (k, n). Small ones are MKL's.
CpuMultiplier cpu_multiplier(int64_t m, int64_t k, int64_t n);

// d = a b, or d += a b. No autograd.
//   a (M, K), b (K, N), d (M, N) of one floating dtype, on the CPU, of any strides; d's rows dense.
void cpu_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, bool adds = false);
// The same of float32, by oneDNN, where the processor has AVX-512. Shapes have no 0.
void onednn_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, bool adds);
// The same by our own kernel, where packed::is_available(). Bits do not depend on the number of
// threads.
void packed_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, bool adds);

}  // namespace flashstep::internal
