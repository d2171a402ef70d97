// Matrix products on a CPU, by the faster one of the two libraries that LibTorch has for them.
#pragma once

#include <string>

#include <torch/types.h>

namespace flashstep::internal {

// What the user allows oneDNN to use, ONEDNN_MAX_CPU_ISA; empty: everything.
std::string onednn_isa();

// Whether oneDNN multiplies float32 faster than MKL on this processor. MKL computes with 256 bits
// on processors that are not Intel's; those with units of 512 reach half of their rate.
bool onednn_is_faster();

// Whether cpu_product() of float32, (m, k) by (k, n), is oneDNN's. Small ones are not.
bool takes_onednn(int64_t m, int64_t k, int64_t n);

// d = alpha a b + beta d; d is not read where beta is 0. No autograd.
//   a (M, K), b (K, N), d (M, N) of one floating dtype, on the CPU, of any strides.
void cpu_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, double alpha = 1,
                 double beta = 0);
// The same of float32, by oneDNN, where the processor has AVX-512. Shapes have no 0.
void onednn_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, double alpha,
                    double beta);

}  // namespace flashstep::internal
