// cuBLASLt behind tensors. lt.cc in a build with CUDA; no_lt.cc, which takes no tensor, in the
// others.
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/products/product.h"
#include "flashstep/products/tuned.h"

namespace flashstep::internal {

bool lt_takes(const at::Tensor& a);
// As flashstep::product or batched_product, which have checked their arguments.
void lt_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, const at::Tensor& c,
                double alpha = 1, double beta = 1);
// The same of float32 tensors, each of which is split into bfloat16.
void split_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d,
                   const at::Tensor& c);

// As flashstep::scaled_product.
bool lt_takes_float8(c10::DeviceIndex device);
void lt_scaled_product(const ScaledMatrix& a, const ScaledMatrix& b, const at::Tensor& d,
                       const at::Tensor& c);

// ---- For flashstep bench products

// What tells one machine's algorithms from another's: the current GPU's name, and the version of
// cuBLASLt.
struct LtMachine {
  std::string gpu;
  int64_t version = 0;
};
LtMachine lt_machine();

// The shapes that lt_product() has computed in this process and that a table may name, each once.
std::vector<ProductShape> lt_shapes();
// How many algorithms the heuristic offers for such tensors, at most 16.
int64_t lt_algorithms(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d,
                      const at::Tensor& c);
// lt_product() by algorithm number `algorithm` of those.
void lt_product_by(int64_t algorithm, const at::Tensor& a, const at::Tensor& b, const at::Tensor& d,
                   const at::Tensor& c);

}  // namespace flashstep::internal
