// What kind of work a kernel, an operator or a range is, by its name. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace flashstep::report {

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

const char* class_name(WorkClass work_class);

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

}  // namespace flashstep::report
