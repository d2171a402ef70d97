// What operators of this room share, and what is known of products on a CPU.
#pragma once

#include <string>
#include <utility>

#include <torch/types.h>

namespace flashstep {

// Whether LibTorch computes products of `dtype` on this CPU by instructions made for it. True for
// dtypes of 32 and 64 bits. ONEDNN_MAX_CPU_ISA, which forbids instructions, is honoured.
bool cpu_multiplies(at::ScalarType dtype);

// What there is to say about products of `dtype` on this CPU; empty where it has them.
std::string products_note(at::ScalarType dtype);

namespace internal {

// linear() as it is where the CPU has no products of `dtype`, of 16 bits.
at::Tensor widened_linear(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype);

// Whether oneDNN, allowed no more than `isa` (a value of ONEDNN_MAX_CPU_ISA), has such products.
bool isa_multiplies(const std::string& isa, at::ScalarType dtype);

// UserError for an id outside [0, end); on a GPU, which the host does not wait for, nothing is
// read.
void check_ids(const char* operation, const char* what, const at::Tensor& ids, int64_t end);

// (...) bool: which targets are not ignored.
at::Tensor is_counted(const at::Tensor& targets);
double counted_of(const at::Tensor& targets);
// Of rows on a CPU: the sum of their losses. logits (R, V), targets (R), dense. dlogits, undefined
// or as the logits or the same tensor, becomes the gradient of all losses' mean over `counted`.
double cross_entropy_on_cpu(const at::Tensor& logits, const at::Tensor& targets, double counted,
                            const at::Tensor& dlogits);
// UserError unless targets are int64 of this shape and, on the CPU, in [0, classes) or ignored.
void check_targets(const char* operation, const at::Tensor& targets, at::IntArrayRef shape,
                   int64_t classes);

}  // namespace internal
}  // namespace flashstep
