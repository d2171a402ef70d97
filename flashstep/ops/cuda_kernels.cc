#include "flashstep/ops/cuda_kernels.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda/float8.h"
#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda_element.h"
#include "flashstep/ops/float8.h"

namespace flashstep::internal {
namespace {

using at::Tensor;
using ops_cuda::element_of;

const void* data_or_null(const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
void* mutable_or_null(const Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }
float* floats_or_null(const Tensor& x) { return static_cast<float*>(mutable_or_null(x)); }

// The defined ones.
std::vector<c10::IValue> values(std::initializer_list<at::TensorList> lists) {
  std::vector<c10::IValue> values;
  for (const at::TensorList& list : lists)
    std::copy_if(list.begin(), list.end(), std::back_inserter(values),
                 [](const Tensor& tensor) { return tensor.defined(); });
  return values;
}

// Enqueues `arguments` on the current stream of the tensors' device. Profilers see an operator on
// the tensors that it reads and writes; what is a row's size or less is left out.
template <typename Arguments>
void enqueue(const char* name, cudaError_t (*kernel)(const Arguments&, cudaStream_t),
             const Arguments& arguments, std::initializer_list<at::TensorList> moved) {
  RECORD_FUNCTION(name, values(moved));
  const c10::cuda::CUDAGuard device(moved.begin()->front().device());
  C10_CUDA_CHECK(kernel(arguments, at::cuda::getCurrentCUDAStream()));
}

bool begins_at_a_vector(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
int64_t padded_height(int64_t height) { return (height + 15) / 16 * 16; }

Float8Matrix to_float8(const Tensor& given, at::ScalarType type, Float8Layout layout,
                       const Tensor& largest, const Tensor& scale) {
  const int64_t height = given.size(0), width = given.size(1), padded = padded_height(height);
  require(given.is_cuda() && given.scalar_type() == at::kBFloat16 && width % 16 == 0 &&
              height <= ops_cuda::kMostRows,
          "[float8] expected x (R, C) of bfloat16 on a GPU, C a multiple of 16, at most ",
          ops_cuda::kMostRows, " rows, got ", given.sizes(), " of ", given.scalar_type(), " on ",
          given.device());
  const Tensor rows = given.contiguous();
  const Tensor x = begins_at_a_vector(rows) ? rows : rows.clone();
  const auto bytes = x.options().dtype(type);
  Float8Matrix result;
  result.scale = scale;
  if (layout != Float8Layout::kColumns) result.rows = at::empty(x.sizes(), bytes);
  if (layout != Float8Layout::kRows) result.columns = at::empty({width, padded}, bytes);
  enqueue("flashstep::to_float8", ops_cuda::to_float8,
          {x.const_data_ptr(), floats_or_null(largest), scale.mutable_data_ptr<float>(),
           mutable_or_null(result.rows), mutable_or_null(result.columns),
           type == at::kFloat8_e5m2 ? ops_cuda::Float8::kE5M2 : ops_cuda::Float8::kE4M3, height,
           width, x.stride(0), padded},
          {x, result.rows, result.columns});
  return result;
}

}  // namespace

bool has_cuda_kernel(const Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cuda() && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

void rms_norm_forward_cuda(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& y,
                           const Tensor& rstd, const Tensor& largest) {
  const int64_t width = x.size(-1);
  enqueue("flashstep::rms_norm_forward", ops_cuda::rms_norm_forward,
          {x.const_data_ptr(), element_of(x), weight.const_data_ptr<float>(), y.mutable_data_ptr(),
           element_of(y), rstd.mutable_data_ptr<float>(), rstd.numel(), width,
           static_cast<float>(epsilon), floats_or_null(largest)},
          {x, y});
}

Tensor rms_norm_backward_cuda(const Tensor& x, const Tensor& weight, const Tensor& rstd,
                              const Tensor& dy, const Tensor& residual, const Tensor& dx,
                              const Tensor& rounded_dx, const Tensor& largest) {
  const int64_t width = x.size(-1), rows = rstd.numel();
  auto dweight = at::empty_like(weight);
  const auto partials =
      at::empty({ops_cuda::rms_norm_partials(rows, width), width}, weight.options());
  enqueue(
      "flashstep::rms_norm_backward", ops_cuda::rms_norm_backward,
      {x.const_data_ptr(), element_of(x), weight.const_data_ptr<float>(),
       rstd.const_data_ptr<float>(), dy.const_data_ptr(), element_of(dy), data_or_null(residual),
       dx.mutable_data_ptr(), mutable_or_null(rounded_dx), partials.mutable_data_ptr<float>(),
       dweight.mutable_data_ptr<float>(), rows, width, floats_or_null(largest)},
      {x, dy, residual, dx, rounded_dx});
  return dweight;
}

void rope_cuda(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse,
               const Tensor& y) {
  ops_cuda::Rope arguments{};
  arguments.x = x.const_data_ptr();
  arguments.y = y.mutable_data_ptr();
  arguments.type = element_of(x);
  arguments.cos = cos.const_data_ptr<float>();
  arguments.sin = sin.const_data_ptr<float>();
  arguments.batch = x.size(0);
  arguments.heads = x.size(1);
  arguments.positions = x.size(2);
  arguments.head_dim = x.size(3);
  arguments.batch_stride = x.stride(0);
  arguments.head_stride = x.stride(1);
  arguments.position_stride = x.stride(2);
  arguments.y_batch_stride = y.stride(0);
  arguments.y_head_stride = y.stride(1);
  arguments.y_position_stride = y.stride(2);
  arguments.inverse = inverse;
  enqueue("flashstep::rope", ops_cuda::rope, arguments, {x, y});
}

void swiglu_forward_cuda(const Tensor& a, const Tensor& b, const Tensor& y, const Tensor& largest) {
  enqueue("flashstep::swiglu_forward", ops_cuda::swiglu_forward,
          {a.const_data_ptr(), b.const_data_ptr(), y.mutable_data_ptr(), element_of(a), a.size(0),
           a.size(1), a.stride(0), floats_or_null(largest)},
          {a, b, y});
}

void swiglu_backward_cuda(const Tensor& a, const Tensor& b, const Tensor& dy, const Tensor& da,
                          const Tensor& db, const Tensor& y, const Tensor& largest) {
  enqueue("flashstep::swiglu_backward", ops_cuda::swiglu_backward,
          {a.const_data_ptr(), b.const_data_ptr(), dy.const_data_ptr(), mutable_or_null(da),
           mutable_or_null(db), mutable_or_null(y), element_of(a), a.size(0), a.size(1),
           a.stride(0), floats_or_null(largest)},
          {a, b, dy, da, db, y});
}

void cross_entropy_cuda(const Tensor& logits, const Tensor& targets, const Tensor& counted,
                        const Tensor& losses, const Tensor& normalizers, const Tensor& dlogits) {
  enqueue("flashstep::cross_entropy", ops_cuda::cross_entropy,
          {logits.const_data_ptr(), mutable_or_null(dlogits), element_of(logits),
           targets.const_data_ptr<int64_t>(), losses.mutable_data_ptr<float>(),
           floats_or_null(normalizers), targets.numel(), logits.size(-1),
           targets.numel() > 1 && logits.dim() == 2 ? logits.stride(0) : logits.size(-1),
           counted.const_data_ptr<float>()},
          {logits, dlogits});
}

void cross_entropy_backward_cuda(const Tensor& logits, const Tensor& targets,
                                 const Tensor& normalizers, const Tensor& counted,
                                 const Tensor& factor, const Tensor& dlogits) {
  enqueue("flashstep::cross_entropy_backward", ops_cuda::cross_entropy_backward,
          {logits.const_data_ptr(), dlogits.mutable_data_ptr(), element_of(logits),
           targets.const_data_ptr<int64_t>(), normalizers.const_data_ptr<float>(),
           factor.const_data_ptr<float>(), counted.const_data_ptr<float>(), targets.numel(),
           logits.size(-1)},
          {logits, dlogits});
}

void embedding_backward_cuda(const Tensor& dy, const Tensor& ids, const Tensor& dweight,
                             bool adds) {
  // Half the bits are sorted in half the time.
  const auto [sorted, order] =
      at::sort(ids.to(at::kInt), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const int64_t positions = ids.numel(), width = dweight.size(1);
  const int64_t chunks = (positions + ops_cuda::kEmbeddingChunk - 1) / ops_cuda::kEmbeddingChunk;
  const Tensor partials = at::empty({chunks, 2, width}, dy.options().dtype(at::kFloat));
  enqueue("flashstep::embedding_backward", ops_cuda::embedding_backward,
          {dy.const_data_ptr(), element_of(dy), sorted.const_data_ptr<int32_t>(),
           order.const_data_ptr<int64_t>(), dweight.mutable_data_ptr(), element_of(dweight),
           partials.mutable_data_ptr<float>(), positions, width, adds},
          {dy, dweight});
}

Tensor largest_of(const Tensor& given) {
  require(given.is_cuda() && given.scalar_type() == at::kBFloat16,
          "[float8] expected x of bfloat16 on a GPU, got ", given.scalar_type(), " on ",
          given.device());
  const Tensor x = given.contiguous();
  const Tensor largest = at::zeros({}, x.options().dtype(at::kFloat));
  enqueue("flashstep::largest", ops_cuda::largest_of,
          {x.const_data_ptr(), x.numel(), largest.mutable_data_ptr<float>()}, {x});
  return largest;
}

Float8Matrix to_float8(const Tensor& x, at::ScalarType type, Float8Layout layout,
                       const Tensor& largest) {
  return to_float8(x, type, layout, largest, at::empty_like(largest));
}
Float8Matrix to_float8_again(const Tensor& x, at::ScalarType type, Float8Layout layout,
                             const Tensor& scale) {
  return to_float8(x, type, layout, {}, scale);
}

SwigluInFloat8 swiglu_backward_in_float8(const Tensor& a, const Tensor& b, const Tensor& dy,
                                         const Tensor& y_scale) {
  const int64_t height = a.size(0), width = a.size(1), padded = padded_height(height);
  const Tensor largest = at::zeros({}, y_scale.options());
  swiglu_backward_cuda(a, b, dy, {}, {}, {}, largest);
  const auto gradients = a.options().dtype(at::kFloat8_e5m2);
  SwigluInFloat8 made;
  made.gradients = {at::empty({height, 2 * width}, gradients),
                    at::empty({2 * width, padded}, gradients), at::empty_like(largest)};
  made.y_columns = at::empty({width, padded}, a.options().dtype(at::kFloat8_e4m3fn));
  const Float8Matrix& into = made.gradients;
  enqueue(
      "flashstep::swiglu_to_float8", ops_cuda::swiglu_to_float8,
      {a.const_data_ptr(), b.const_data_ptr(), dy.const_data_ptr(), largest.const_data_ptr<float>(),
       into.scale.mutable_data_ptr<float>(), y_scale.const_data_ptr<float>(),
       into.rows.mutable_data_ptr(), into.columns.mutable_data_ptr(),
       made.y_columns.mutable_data_ptr(), height, width, a.stride(0), padded},
      {a, b, dy, into.rows, into.columns, made.y_columns});
  return made;
}

Tensor counted_cuda(const Tensor& targets) {
  const c10::cuda::CUDAGuard guard(targets.device());
  const Tensor counted = at::empty({}, targets.options().dtype(at::kFloat));
  C10_CUDA_CHECK(ops_cuda::cross_entropy_counted(targets.const_data_ptr<int64_t>(), targets.numel(),
                                                 counted.mutable_data_ptr<float>(),
                                                 at::cuda::getCurrentCUDAStream()));
  return counted;
}

Tensor mean_cuda(const Tensor& values, const Tensor& counted) {
  const c10::cuda::CUDAGuard guard(values.device());
  auto mean = at::empty({}, values.options());
  C10_CUDA_CHECK(ops_cuda::mean(values.const_data_ptr<float>(), values.numel(),
                                counted.const_data_ptr<float>(), mean.mutable_data_ptr<float>(),
                                at::cuda::getCurrentCUDAStream()));
  return mean;
}

static_assert(ops_cuda::kIgnored == kIgnoredTarget);

}  // namespace flashstep::internal
