// The CUDA kernels behind tensors. cuda_kernels.cc in a build with CUDA; no_cuda_kernels.cc, which
// takes no tensor, in the others. Results are written into tensors that the caller made; what is
// said to be dense is contiguous. On the current stream of the tensors' device.
#pragma once

#include <vector>

#include <torch/types.h>

namespace flashstep::internal {

// Whether the kernels take this tensor: on a GPU, of float32, bfloat16 or float16.
bool has_cuda_kernel(const at::Tensor& x);

// `largest` of these: () float32 that is 0 and becomes the largest magnitude of what is named; NaN
// where one is NaN; undefined: not wanted.

// x (R, C) dense, weight (C) float32, y dense of x's dtype or, for a float32 x, any; rstd (R)
// float32. largest: y's.
void rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                           const at::Tensor& y, const at::Tensor& rstd,
                           const at::Tensor& largest = {});
// residual: added to dx, like x; undefined: nothing. rounded_dx: like dy, dx once more in its
// dtype; undefined: not wanted. largest: dx's. Returns the weight's gradient (C), float32.
at::Tensor rms_norm_backward_cuda(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& rstd, const at::Tensor& dy,
                                  const at::Tensor& residual, const at::Tensor& dx,
                                  const at::Tensor& rounded_dx = {},
                                  const at::Tensor& largest = {});

// x, y (B, H, N, D), the last dimension dense; cos, sin (N, D / 2) float32, dense.
void rope_cuda(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse,
               const at::Tensor& y);

// a, b and their gradients (R, F) of equal strides, the rows dense; y, dy dense. y of backward is
// forward's once more, unless it is undefined. largest: y's; that of da and db, which may be
// undefined.
void swiglu_forward_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y,
                         const at::Tensor& largest = {});
void swiglu_backward_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& dy,
                          const at::Tensor& da, const at::Tensor& db, const at::Tensor& y = {},
                          const at::Tensor& largest = {});

// logits (R, V) dense, targets (R) int64 dense, losses (R) and normalizers (R, 2)
// float32. dlogits, unless it is
// undefined: (softmax - one_hot) / counted; may be logits.
void cross_entropy_cuda(const at::Tensor& logits, const at::Tensor& targets,
                        const at::Tensor& counted, const at::Tensor& losses,
                        const at::Tensor& normalizers, const at::Tensor& dlogits = {});
// dlogits = (softmax(logits) - one_hot) * factor / counted; factor () float32 on the GPU.
void cross_entropy_backward_cuda(const at::Tensor& logits, const at::Tensor& targets,
                                 const at::Tensor& normalizers, const at::Tensor& counted,
                                 const at::Tensor& factor, const at::Tensor& dlogits);

// dweight (V, C): sums of dy's rows by ids (T) int64. dy (..., C) dense. Rows that no id names stay
// as they are; the others are written, or added to.
void embedding_backward_cuda(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& dweight,
                             bool adds = false);

// How many of the targets are not ignored, () float32.
at::Tensor counted_cuda(const at::Tensor& targets);
// The sum of a dense float32 tensor, in float64, over `counted`; () float32.
at::Tensor mean_cuda(const at::Tensor& values, const at::Tensor& counted);

}  // namespace flashstep::internal
