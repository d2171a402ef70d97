#include "flashstep/products/lt.h"

#include <array>
#include <cublasLt.h>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/base/error.h"

namespace flashstep::internal {
namespace {

using at::Tensor;

// What NVIDIA recommends for Hopper: enough for split sums of every shape that profits.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kMostAlignmentBytes = 256;  // more makes no difference to any kernel

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw MachineError(str("[product] ", what, ": ", cublasGetStatusString(status)));
}

cudaDataType_t type_of(at::ScalarType type) {
  return type == at::kFloat ? CUDA_R_32F : type == at::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

// A matrix as it lies in memory, by columns: a tensor with dense rows is its own transpose.
struct Matrix {
  const void* data;
  at::ScalarType type;
  int64_t rows, columns, stride;
  bool transposed;  // to be, before it is multiplied
};
Matrix matrix_of(const Tensor& x) {
  const bool dense_rows =
      x.stride(1) == 1 && (x.stride(0) != 1 || x.size(1) == 1 || x.size(0) == 1);
  const int64_t least = std::max<int64_t>(1, dense_rows ? x.size(1) : x.size(0));
  const int64_t stride = std::max(least, dense_rows ? x.stride(0) : x.stride(1));
  return dense_rows
             ? Matrix{x.const_data_ptr(), x.scalar_type(), x.size(1), x.size(0), stride, false}
             : Matrix{x.const_data_ptr(), x.scalar_type(), x.size(0), x.size(1), stride, true};
}

uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto own = static_cast<uint32_t>(address & (~address + 1) & (2 * kMostAlignmentBytes - 1));
  return own == 0 || own > kMostAlignmentBytes ? kMostAlignmentBytes : own;
}

using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               decltype(&cublasLtMatrixLayoutDestroy)>;
Layout layout_of(const Matrix& m) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(m.type), static_cast<uint64_t>(m.rows),
                                   static_cast<uint64_t>(m.columns), m.stride),
        "describing a matrix");
  return {layout, cublasLtMatrixLayoutDestroy};
}

// How one shape is computed.
struct Plan {
  std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, decltype(&cublasLtMatmulDescDestroy)>
      operation{nullptr, cublasLtMatmulDescDestroy};
  Layout a{nullptr, cublasLtMatrixLayoutDestroy}, b{nullptr, cublasLtMatrixLayoutDestroy},
      d{nullptr, cublasLtMatrixLayoutDestroy};
  cublasLtMatmulAlgo_t algorithm;
};

template <typename T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t what, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation, what, &value, sizeof(value)),
        "describing a product");
}
template <typename T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what,
         const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value)),
        "describing a product");
}

std::unique_ptr<Plan> make_plan(cublasLtHandle_t handle, const Matrix& a, const Matrix& b,
                                const Matrix& d, const void* c) {
  auto plan = std::make_unique<Plan>();
  const bool may_round = a.type == at::kFloat && at::globalContext().allowTF32CuBLAS();
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(
            &operation, may_round ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describing a product");
  plan->operation.reset(operation);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan->a = layout_of(a);
  plan->b = layout_of(b);
  plan->d = layout_of(d);
  cublasLtMatmulPreference_t created = nullptr;
  check(cublasLtMatmulPreferenceCreate(&created), "describing a product");
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        decltype(&cublasLtMatmulPreferenceDestroy)>
      preference(created, cublasLtMatmulPreferenceDestroy);
  set(created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(a.data));
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(b.data));
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c));
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(d.data));
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, operation, plan->a.get(), plan->b.get(),
                                       plan->d.get(), plan->d.get(), created, 1, &result, &count),
        "choosing an algorithm");
  if (count == 0) throw MachineError("[product] cuBLASLt has no algorithm for this shape");
  plan->algorithm = result.algo;
  return plan;
}

using Key = std::array<int64_t, 19>;
Key key_of(int device, const Matrix& a, const Matrix& b, const Matrix& d, const void* c,
           bool adds) {
  return {device,
          at::globalContext().allowTF32CuBLAS(),
          static_cast<int64_t>(a.type),
          a.rows,
          a.columns,
          a.stride,
          a.transposed,
          alignment_of(a.data),
          b.rows,
          b.columns,
          b.stride,
          b.transposed,
          alignment_of(b.data),
          static_cast<int64_t>(d.type),
          d.columns,
          d.stride,
          alignment_of(d.data),
          alignment_of(c),
          adds};
}

// Plans of all shapes so far. A plan is not changed once it is made, so that threads share it.
const Plan& plan_for(cublasLtHandle_t handle, int device, const Matrix& a, const Matrix& b,
                     const Matrix& d, const void* c, bool adds) {
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<Plan>> plans;
  const Key key = key_of(device, a, b, d, c, adds);
  const std::lock_guard lock(mutex);
  auto& plan = plans[key];
  if (!plan) plan = make_plan(handle, a, b, d, c);
  return *plan;
}

}  // namespace

bool lt_takes(const Tensor& a) {
  const auto type = a.scalar_type();
  return a.is_cuda() && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

// By columns d' = b' a': the operands change places.
void lt_product(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Matrix left = matrix_of(b), right = matrix_of(a);
  const Matrix result = {d.const_data_ptr(),
                         d.scalar_type(),
                         d.size(1),
                         d.size(0),
                         std::max(d.stride(0), d.size(1)),
                         false};
  const void* added = c.defined() ? c.const_data_ptr() : d.const_data_ptr();
  const Plan& plan = plan_for(handle, a.device().index(), left, right, result, added, c.defined());
  const float alpha = 1, beta = c.defined() ? 1 : 0;
  const Tensor workspace =
      at::detail::empty_cuda({static_cast<int64_t>(kWorkspaceBytes)}, a.options().dtype(at::kByte));
  check(cublasLtMatmul(handle, plan.operation.get(), &alpha, left.data, plan.a.get(), right.data,
                       plan.b.get(), &beta, added, plan.d.get(), d.mutable_data_ptr(), plan.d.get(),
                       &plan.algorithm, workspace.mutable_data_ptr(), kWorkspaceBytes,
                       at::cuda::getCurrentCUDAStream()),
        "launching");
}

}  // namespace flashstep::internal
