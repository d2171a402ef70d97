// What the operators' GPU tests share.
#pragma once

#include <string>
#include <vector>

#include <ATen/Context.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include "flashstep/ops/test_op.h"
#include "flashstep/testing/gpus.h"

namespace flashstep::testing {

inline const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

class OpsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    at::globalContext().setAllowTF32CuBLAS(false);
    torch::manual_seed(11);
  }
};

inline at::Tensor randn(at::IntArrayRef shape) {
  return torch::randn(shape, at::TensorOptions(kGpu).dtype(at::kFloat));
}
inline at::Tensor random_targets(int64_t rows, int64_t classes) {
  return torch::randint(classes, {rows}, at::TensorOptions(kGpu).dtype(at::kLong));
}

inline void expect_agreement_on_gpu(const Op& op, const Op& reference,
                                    const std::vector<at::Tensor>& inputs,
                                    const std::string& what) {
  expect_agreement(op, reference, inputs, what, kDtypes);
}

}  // namespace flashstep::testing
