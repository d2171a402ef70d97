// Which gradients are reduced together, and where each lies in its bucket. Pure functions of the
// parameters' shapes: every rank computes the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flashstep {

// Slots begin at multiples of this: one cache line and one AVX-512 register, four times the 16
// bytes that vectorized CUDA kernels need of a tensor's address.
inline constexpr int64_t kSlotAlignmentBytes = 64;

// One flat tensor that holds the gradients of several parameters, which are of one device and dtype
// as these are.
struct BucketLayout {
  std::vector<int64_t> parameters;    // indices into the list of parameters, in the order of slots
  std::vector<int64_t> offsets;       // where each slot begins, elements
  int64_t numel = 0;                  // of the flat tensor, padding included
  at::ScalarType dtype = at::kFloat;  // of the gradients
};

// What set_grad_dtype() has announced for the gradient of `parameter`, else the parameter's dtype.
at::ScalarType gradient_dtype(const at::Tensor& parameter);
std::vector<at::ScalarType> gradient_dtypes(const std::vector<at::Tensor>& parameters);
double gradient_bytes(const std::vector<at::Tensor>& parameters);

// count - 1, ..., 0: the order in which backward reaches the parameters of a plain stack.
std::vector<int64_t> reversed_order(size_t count);

// Walks over the parameters in `order` and fills one open bucket per device, dtype and dtype of the
// gradient (`dtypes`, of each parameter's); the parameter whose gradient brings a bucket to at
// least `bucket_bytes` closes it (so 0 puts each into a bucket of its own, infinity all of a kind
// into one). The last buckets are smaller, for nothing is computed beside them: the last closes at
// `last_bytes`, counted from the end, and each before it at twice the bytes of the next. The
// buckets are sorted by where their last parameter stands in `order`, which is the order in which
// they become ready.
std::vector<BucketLayout> plan_buckets(const std::vector<at::Tensor>& parameters,
                                       const std::vector<at::ScalarType>& dtypes,
                                       const std::vector<int64_t>& order, double bucket_bytes,
                                       double last_bytes = std::numeric_limits<double>::infinity());

// The strides that autograd gives the gradient of `parameter`: the parameter's own where it is
// dense in memory, else those of a contiguous tensor.
std::vector<int64_t> gradient_strides(const at::Tensor& parameter);

// All elements of `tensor`, which is dense in memory in any order of its axes, as a (numel) tensor
// over the same memory. Autograd knows nothing of the view.
at::Tensor flat_view(const at::Tensor& tensor);

// The first `numel` elements of the memory that `tensor` lies in, the same way.
at::Tensor whole_memory(const at::Tensor& tensor, int64_t numel);

// The slot of `parameter` at `offset` in `flat`: shape of the parameter, strides of its gradient.
// Not a view to autograd, for zero_grad detaches gradients in place, which throws on views.
at::Tensor slot_view(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter);

// To be called for a tensor that is written through such views, raw pointers or c10d, which
// autograd does not see: who keeps what was computed from its values knows by its version that they
// are old.
void note_written(const at::Tensor& tensor);

// The same memory, seen the same way.
bool is_same_view(const at::Tensor& a, const at::Tensor& b);

}  // namespace flashstep
