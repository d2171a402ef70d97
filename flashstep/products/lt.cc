#include "flashstep/products/lt.h"

#include <algorithm>
#include <array>
#include <cublasLt.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDADataType.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/error.h"
#include "flashstep/products/cuda/counters.h"
#include "flashstep/products/cuda/split.h"
#include "flashstep/products/product.h"

namespace flashstep::internal {
namespace {

using at::Tensor;

// What NVIDIA recommends for Hopper: enough for split sums of every shape that profits.
constexpr size_t kMostWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kMostAlignmentBytes = 256;  // more makes no difference to any kernel
constexpr int kMostAlgorithms = 16;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw MachineError(str("[product] ", what, ": ", cublasGetStatusString(status)));
}

// Memory whose every element is written: at::empty would fill it in deterministic runs.
Tensor unfilled(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::detail::empty_cuda(sizes, options);
}

// A matrix as it lies in memory, by columns: a tensor with dense rows is its own transpose. Or a
// batch of such.
struct Matrix {
  const void* data;
  at::ScalarType type;
  int64_t rows, columns, stride;
  bool transposed;  // to be, before it is multiplied
  int64_t batch = 1, batch_stride = 0;
};
Matrix matrix_of(const Tensor& x) {
  if (x.dim() == 3) {
    Matrix all = matrix_of(x[0]);
    all.batch = x.size(0);
    all.batch_stride = x.stride(0);
    return all;
  }
  const bool dense_rows =
      x.stride(1) == 1 && (x.stride(0) != 1 || x.size(1) == 1 || x.size(0) == 1);
  const int64_t least = std::max<int64_t>(1, dense_rows ? x.size(1) : x.size(0));
  const int64_t stride = std::max(least, dense_rows ? x.stride(0) : x.stride(1));
  return dense_rows
             ? Matrix{x.const_data_ptr(), x.scalar_type(), x.size(1), x.size(0), stride, false}
             : Matrix{x.const_data_ptr(), x.scalar_type(), x.size(0), x.size(1), stride, true};
}

uint32_t alignment_of_address(uintptr_t address) {
  const auto own = static_cast<uint32_t>(address & (~address + 1) & (2 * kMostAlignmentBytes - 1));
  return own == 0 || own > kMostAlignmentBytes ? kMostAlignmentBytes : own;
}
uint32_t alignment_of(const void* p) {
  return alignment_of_address(reinterpret_cast<uintptr_t>(p));
}
// Of every matrix of a batch that begins at `p` and lies as `m` does.
uint32_t alignment_of(const void* p, const Matrix& m) {
  const auto bytes = static_cast<uintptr_t>(m.batch_stride) * c10::elementSize(m.type);
  return m.batch == 1 ? alignment_of(p) : std::min(alignment_of(p), alignment_of_address(bytes));
}
uint32_t alignment_of(const Matrix& m) { return alignment_of(m.data, m); }

using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               decltype(&cublasLtMatrixLayoutDestroy)>;
Layout layout_of(const Matrix& m) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, at::cuda::ScalarTypeToCudaDataType(m.type),
                                   static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.columns),
                                   m.stride),
        "describing a matrix");
  Layout owned(layout, cublasLtMatrixLayoutDestroy);
  if (m.batch == 1) return owned;
  const auto count = static_cast<int32_t>(m.batch);
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof(count)),
        "describing a batch");
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &m.batch_stride, sizeof(m.batch_stride)),
        "describing a batch");
  return owned;
}

// How one shape is computed.
struct Plan {
  std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, decltype(&cublasLtMatmulDescDestroy)>
      operation{nullptr, cublasLtMatmulDescDestroy};
  Layout a{nullptr, cublasLtMatrixLayoutDestroy}, b{nullptr, cublasLtMatrixLayoutDestroy},
      d{nullptr, cublasLtMatrixLayoutDestroy};
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace_bytes = 0;  // which it asks for: most ask for none, or for a counter
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

// How sums of a product that is computed in parts may be added up, by LibTorch's settings.
at::CuBLASReductionOption reduction_of(at::ScalarType type) {
  using enum at::CuBLASReductionOption;
  const at::Context& context = at::globalContext();
  return type == at::kBFloat16 || c10::elementSize(type) == 1 ? context.allowBF16ReductionCuBLAS()
         : type == at::kHalf                                  ? context.allowFP16ReductionCuBLAS()
                                                              : AllowReducedPrecisionWithSplitK;
}
uint32_t reduction_mask(at::CuBLASReductionOption option) {
  using enum at::CuBLASReductionOption;
  return option == AllowReducedPrecisionWithSplitK       ? CUBLASLT_REDUCTION_SCHEME_MASK
         : option == DisallowReducedPrecisionAllowSplitK ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                         : CUBLASLT_REDUCTION_SCHEME_NONE;
}

// With algorithm number `algorithm` of those that the heuristic names, or the last.
std::unique_ptr<Plan> make_plan(cublasLtHandle_t handle, const Matrix& a, const Matrix& b,
                                const Matrix& d, const void* c, int64_t algorithm,
                                int* offered = nullptr) {
  auto plan = std::make_unique<Plan>();
  const bool may_round = a.type == at::kFloat && rounds_to_tf32();
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
  set(created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspaceBytes);
  set(created, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_mask(reduction_of(a.type)));
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(a));
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(b));
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c, d));
  set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(d));
  std::array<cublasLtMatmulHeuristicResult_t, kMostAlgorithms> results;
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, operation, plan->a.get(), plan->b.get(),
                                       plan->d.get(), plan->d.get(), created, kMostAlgorithms,
                                       results.data(), &count),
        "choosing an algorithm");
  if (count == 0) throw MachineError("[product] cuBLASLt has no algorithm for this shape");
  if (offered != nullptr) *offered = count;
  const auto& chosen = results[static_cast<size_t>(std::min<int64_t>(algorithm, count - 1))];
  plan->algorithm = chosen.algo;
  plan->workspace_bytes = chosen.workspaceSize;
  return plan;
}

using Key = std::array<int64_t, 25>;
Key key_of(int device, const Matrix& a, const Matrix& b, const Matrix& d, const void* c,
           bool adds) {
  return {device,
          rounds_to_tf32(),
          static_cast<int64_t>(reduction_of(a.type)),
          static_cast<int64_t>(a.type),
          static_cast<int64_t>(b.type),
          a.rows,
          a.columns,
          a.stride,
          a.transposed,
          alignment_of(a),
          b.rows,
          b.columns,
          b.stride,
          b.transposed,
          alignment_of(b),
          static_cast<int64_t>(d.type),
          d.columns,
          d.stride,
          alignment_of(d),
          alignment_of(c, d),
          adds,
          d.batch,
          a.batch_stride,
          b.batch_stride,
          d.batch_stride};
}

bool is_padded(const Matrix& m) { return m.stride == padded_width(m.rows); }

// What a table knows the product by; none for tensors that lie otherwise.
std::optional<ProductShape> shape_of(const Matrix& a, const Matrix& b, const Matrix& d,
                                     const void* c, bool adds) {
  if (d.batch > 1) return std::nullopt;
  if (c10::elementSize(a.type) != 2) return std::nullopt;  // others depend on more than a shape
  if (reduction_of(a.type) != at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK)
    return std::nullopt;  // other algorithms, other numbers
  for (const void* data : {a.data, b.data, d.data, c}) {
    if (alignment_of(data) < kMostAlignmentBytes) return std::nullopt;
  }
  if (!is_padded(a) || !is_padded(b) || !is_padded(d)) return std::nullopt;
  // By columns the operands change places, and what is transposed lies by rows.
  return ProductShape{
      a.type,       d.type,       d.columns, d.rows, a.transposed ? a.rows : a.columns,
      b.transposed, a.transposed, adds};
}

struct Known {
  std::unique_ptr<Plan> plan;
  std::optional<ProductShape> shape;
};

// Plans of all shapes so far. A plan is not changed once it is made, so that threads share it.
struct Plans {
  std::mutex mutex;
  std::map<Key, Known> known;

  static Plans& all() {
    static Plans plans;
    return plans;
  }
};

const Plan& plan_for(cublasLtHandle_t handle, int device, const Matrix& a, const Matrix& b,
                     const Matrix& d, const void* c, bool adds) {
  Plans& plans = Plans::all();
  const Key key = key_of(device, a, b, d, c, adds);
  const std::lock_guard lock(plans.mutex);
  if (const auto found = plans.known.find(key); found != plans.known.end())
    return *found->second.plan;
  const auto shape = shape_of(a, b, d, c, adds);
  const LtMachine machine = lt_machine();
  const int64_t algorithm =
      shape ? tuned_algorithm(machine.gpu.c_str(), machine.version, *shape) : 0;
  auto plan = make_plan(handle, a, b, d, c, algorithm);
  return *plans.known.emplace(key, Known{std::move(plan), shape}).first->second.plan;
}

// Of dense rows, also where there is one column.
Matrix rows_of(const Tensor& d) {
  if (d.dim() == 3) {
    Matrix all = rows_of(d[0]);
    all.batch = d.size(0);
    all.batch_stride = d.stride(0);
    return all;
  }
  return {d.const_data_ptr(),
          d.scalar_type(),
          d.size(1),
          d.size(0),
          std::max(d.stride(0), d.size(1)),
          false};
}

// By columns d' = b' a': the operands change places.
struct Operands {
  Matrix left, right, result;
  const void* added;

  Operands(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c)
      : left(matrix_of(b)),
        right(matrix_of(a)),
        result(rows_of(d)),
        added(c.defined() ? c.const_data_ptr() : d.const_data_ptr()) {}
};

void launch(cublasLtHandle_t handle, const Plan& plan, const Operands& operands, const Tensor& d,
            float alpha, float beta, const float* left_scale = nullptr,
            const float* right_scale = nullptr) {
  cublasLtMatmulDescOpaque_t operation = *plan.operation;  // threads share the plan's
  if (left_scale != nullptr) set(&operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, left_scale);
  if (right_scale != nullptr) set(&operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, right_scale);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  Tensor own;
  void* workspace = nullptr;
  if (plan.workspace_bytes > 0)
    workspace = products_cuda::RecordedCounters::take(plan.workspace_bytes, stream);
  if (plan.workspace_bytes > 0 && workspace == nullptr) {
    own = unfilled({static_cast<int64_t>(plan.workspace_bytes)}, d.options().dtype(at::kByte));
    workspace = own.mutable_data_ptr();
  }
  check(cublasLtMatmul(handle, &operation, &alpha, operands.left.data, plan.a.get(),
                       operands.right.data, plan.b.get(), &beta, operands.added, plan.d.get(),
                       d.mutable_data_ptr(), plan.d.get(), &plan.algorithm, workspace,
                       plan.workspace_bytes, stream),
        "launching");
}

// The bfloat16 pieces of float32 x, one copy behind the other along `dim`.
Tensor pieces_of(const Tensor& x, int64_t dim, bool low_first) {
  const bool by_rows = x.stride(1) == 1;
  const Tensor rows = by_rows ? x : x.t();
  const bool beside = by_rows == (dim == 1);  // or one below the other
  const int64_t height = rows.size(0), width = rows.size(1);
  const int64_t wide = beside ? 3 * width : width;
  const int64_t stride = padded_width(wide);
  const Tensor pieces =
      unfilled({beside ? height : 3 * height, stride}, x.options().dtype(at::kBFloat16))
          .narrow(1, 0, wide);
  C10_CUDA_CHECK(products_cuda::split(
      {rows.const_data_ptr<float>(), height, width, rows.stride(0), pieces.mutable_data_ptr(),
       stride, beside ? width : height * stride, low_first},
      at::cuda::getCurrentCUDAStream()));
  return by_rows ? pieces : pieces.t();
}

}  // namespace

bool lt_takes(const Tensor& a) {
  const auto type = a.scalar_type();
  return a.is_cuda() && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

void lt_product(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c, double alpha,
                double beta) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Operands operands(a, b, d, c);
  const Plan& plan = plan_for(handle, a.device().index(), operands.left, operands.right,
                              operands.result, operands.added, c.defined());
  launch(handle, plan, operands, d, static_cast<float>(alpha),
         c.defined() ? static_cast<float>(beta) : 0);
}

bool lt_takes_float8(c10::DeviceIndex device) {
  if (device >= at::cuda::device_count()) return false;
  const cudaDeviceProp* const gpu = at::cuda::getDeviceProperties(device);
  return gpu->major * 10 + gpu->minor >= 89;
}

void lt_scaled_product(const ScaledMatrix& a, const ScaledMatrix& b, const Tensor& d,
                       const Tensor& c) {
  const c10::cuda::CUDAGuard guard(a.values.device());
  const auto handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Operands operands(a.values, b.values.t(), d, c);
  const Plan& plan = plan_for(handle, a.values.device().index(), operands.left, operands.right,
                              operands.result, operands.added, c.defined());
  launch(handle, plan, operands, d, 1, c.defined() ? 1 : 0, b.scale.const_data_ptr<float>(),
         a.scale.const_data_ptr<float>());
}

// Small products first, so that the sum loses least: low high + high low + high high.
void split_product(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c) {
  const c10::cuda::CUDAGuard guard(a.device());
  lt_product(pieces_of(a, 1, /*low_first=*/true), pieces_of(b, 0, /*low_first=*/false), d, c);
}

LtMachine lt_machine() {
  return {at::cuda::getCurrentDeviceProperties()->name, static_cast<int64_t>(cublasLtGetVersion())};
}

std::vector<ProductShape> lt_shapes() {
  Plans& plans = Plans::all();
  const std::lock_guard lock(plans.mutex);
  std::vector<ProductShape> shapes;
  for (const auto& [key, known] : plans.known) {
    if (known.shape && std::find(shapes.begin(), shapes.end(), *known.shape) == shapes.end())
      shapes.push_back(*known.shape);
  }
  return shapes;
}

int64_t lt_algorithms(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c) {
  const c10::cuda::CUDAGuard guard(a.device());
  const Operands operands(a, b, d, c);
  int offered = 0;
  make_plan(at::cuda::getCurrentCUDABlasLtHandle(), operands.left, operands.right, operands.result,
            operands.added, 0, &offered);
  return offered;
}

void lt_product_by(int64_t algorithm, const Tensor& a, const Tensor& b, const Tensor& d,
                   const Tensor& c) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Operands operands(a, b, d, c);
  const auto plan =
      make_plan(handle, operands.left, operands.right, operands.result, operands.added, algorithm);
  launch(handle, *plan, operands, d, 1, c.defined() ? 1 : 0);
}

}  // namespace flashstep::internal
