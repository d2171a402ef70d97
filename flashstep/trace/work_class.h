// What kind of work a kernel, an operator or a range is, by its name. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep::tools {

enum class WorkClass : unsigned char {
  kMatmul,
  kAttention,      // fused kernels; the naive formula is matmul, softmax and element-wise
  kSoftmax,        // also its logarithm and the cross-entropy
  kElementwise,    // also the optimizer's update
  kReduction,      // sums, norms, scans, sorts
  kCopy,           // copies, casts, fills, gathers
  kCommunication,  // NCCL's and Gloo's, and copies from GPU to GPU
  kHost,           // on a CPU: views, dispatch, autograd's bookkeeping
  kOther,          // known to no rule
};
inline constexpr int kWorkClasses = static_cast<int>(WorkClass::kOther) + 1;
const std::vector<WorkClass>& all_work_classes();

const char* class_name(WorkClass work_class);

// "aten::mm" -> "mm".
std::string_view last_name(std::string_view name);

// Of a kernel on a GPU by its demangled name, and of copies ("Memcpy HtoD ...").
WorkClass class_of_kernel(std::string_view name);

// Of an operator or a node of the backward pass ("aten::mm", "MmBackward0").
WorkClass class_of_operator(std::string_view name);

// Of the time that a range spends outside of all operators: functions of ours that LibTorch's
// dispatcher does not see compute there.
WorkClass class_of_range(std::string_view name);

// A kernel's name without template arguments, parameters and namespaces: what people call it.
// "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<...>>(...)" -> "reduce_kernel".
// For PyTorch's element-wise kernels the functor is what tells them apart and stays:
// "vectorized_elementwise_kernel (CUDAFunctor_add)".
std::string short_kernel_name(std::string_view name);

// The work of one operator by the shapes of its arguments, as LibTorch's profiler records them.
// Torch-free.

// One tensor among an operator's arguments.
struct Operand {
  std::vector<int64_t> shape;
  int64_t element_bytes = 0;  // 0: no tensor (a number, a list of numbers, nothing)
  bool operator==(const Operand&) const = default;
};

// Of "float", "c10::BFloat16", "long int" and the like, as the profiler writes them; 0 for
// "Scalar", "" and what else is no tensor. Lists of tensors ("TensorList") come without their
// dtype: they count as float32, which gradients, parameters and AdamW's state are.
int64_t profiled_element_bytes(std::string_view dtype);

// flops: of matrix products 2 m n k (a multiplication and an addition), of fused attention those
// of attention/cost.h, under a causal mask where there are as many queries as keys; 0 for others.
// bytes: every argument read once and the result written once, which is the least that must pass
// through memory; an operator in place writes its first argument. 0 for views and for operators
// that only call others (aten::linear, aten::to), which are counted themselves. Rows of a table are
// taken to lie along its first dimension.
struct OperatorWork {
  double flops = 0, bytes = 0;
};
bool operator_works(std::string_view name);  // false: always 0, whatever the shapes
OperatorWork operator_work(std::string_view name, std::span<const Operand> operands);

}  // namespace flashstep::tools
