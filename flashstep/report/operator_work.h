// The work of one operator by the shapes of its arguments, as LibTorch's profiler records them.
// Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace flashstep::report {

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
// that only call others (aten::linear, aten::to), which are counted themselves.
struct OperatorWork {
  double flops = 0, bytes = 0;
};
bool operator_works(std::string_view name);  // false: always 0, whatever the shapes
OperatorWork operator_work(std::string_view name, std::span<const Operand> operands);

}  // namespace flashstep::report
