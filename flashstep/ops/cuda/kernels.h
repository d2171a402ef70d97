// CUDA kernels of this room: what the tensor side calls. No torch headers here or below.
//
// All arithmetic is float32. A result's bits depend on shapes and values only: there are no atomics
// but maxima, and no choice by device. Every function enqueues on `stream`, allocates nothing and
// never waits, so that it can be captured in a CUDA graph; what it returns is the launches' error.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace flashstep::ops_cuda {

enum class Element { kFloat32, kBfloat16, kFloat16 };

// y = weight * (x * rstd), rstd = 1 / sqrt(mean(x^2) + epsilon), for each row. x_type is y_type or
// float32.
struct RmsNormForward {
  const void* x;  // (rows, width) of x_type
  Element x_type;
  const float* weight;  // (width)
  void* y;              // (rows, width) of y_type
  Element y_type;
  float* rstd;  // (rows)
  int64_t rows, width;
  float epsilon;
  float* largest;  // max(*largest, |y|); or null
};
cudaError_t rms_norm_forward(const RmsNormForward& a, cudaStream_t stream);

// With g = dy * weight and xhat = x * rstd: dx = residual + rstd * (g - xhat * mean(g * xhat)) and
// dweight = sum over the rows of dy * xhat. dx may be wanted in y_type as well.
struct RmsNormBackward {
  const void* x;
  Element x_type;
  const float *weight, *rstd;
  const void* dy;  // (rows, width) of y_type
  Element y_type;
  const void* residual;  // (rows, width) of x_type, added to dx; or null
  void* dx;              // (rows, width) of x_type; may be residual
  void* rounded_dx;      // (rows, width) of y_type: dx once more; or null
  float* partials;       // (rms_norm_partials(rows, width), width), workspace
  float* dweight;        // (width)
  int64_t rows, width;
  float* largest;  // max(*largest, |dx|); or null
};
int64_t rms_norm_partials(int64_t rows, int64_t width);
cudaError_t rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream);

// Rotates pairs (x[2i], x[2i+1]) of a row by the angle whose cosine and sine stand at
// cos[position][i] and sin[position][i]; by minus the angle if `inverse`. y may
// be x.
struct Rope {
  const void* x;
  void* y;
  Element type;
  const float *cos, *sin;  // (positions, head_dim / 2)
  int64_t batch, heads, positions, head_dim;
  int64_t batch_stride, head_stride, position_stride;  // in elements, of x
  int64_t y_batch_stride, y_head_stride, y_position_stride;
  bool inverse;
};
cudaError_t rope(const Rope& a, cudaStream_t stream);

// y = silu(a) * b, silu(a) = a / (1 + exp(-a)), for `rows` rows of `width` elements.
struct SwigluForward {
  const void *a, *b;
  void* y;
  Element type;
  int64_t rows, width;
  int64_t input_stride;  // in elements, between the rows of a and of b; y's rows are dense
  float* largest;        // max(*largest, |y|); or null
};
cudaError_t swiglu_forward(const SwigluForward& args, cudaStream_t stream);

// da = dy * b * s * (1 + a * (1 - s)), db = dy * a * s with s = 1 / (1 + exp(-a)); and y once more
// unless it is null. da, db may be a, b; null where only the largest is wanted.
struct SwigluBackward {
  const void *a, *b, *dy;
  void *da, *db, *y;
  Element type;
  int64_t rows, width;
  int64_t input_stride;  // of a, b, da and db; dy's and y's rows are dense
  float* largest;        // max(*largest, |da|, |db|); or null
};
cudaError_t swiglu_backward(const SwigluBackward& args, cudaStream_t stream);

// losses[r] = log(sum(exp(logits[r]))) - logits[r][targets[r]]; NaN for a target outside
// [0, classes). Unless dlogits is null: dlogits[r] = (softmax(logits[r]) - one_hot) / *counted. Of
// an ignored target (kIgnored) both are 0.
struct CrossEntropy {
  const void* logits;  // (rows, classes), rows `stride` elements apart
  void* dlogits;       // the same shape, type and stride, or null; may be logits
  Element type;
  const int64_t* targets;  // (rows)
  float* losses;           // (rows)
  // (rows, 2), or null: the largest logit, and log(sum(exp(logit - largest))), apart because their
  // sum would be rounded to the largest's last place.
  float* normalizers;
  int64_t rows, classes;
  // At least `classes`, and less than 8 more: a multiple of 8 makes rows that vectors take. What
  // lies behind a row's logits counts for nothing, and its gradient is 0.
  int64_t stride;
  const float* counted;  // cross_entropy_counted's; may be null where dlogits is
};
cudaError_t cross_entropy(const CrossEntropy& a, cudaStream_t stream);

// dlogits[r] = (softmax(logits[r]) - one_hot) * *factor / *counted, with forward's normalizers.
struct CrossEntropyBackward {
  const void* logits;
  void* dlogits;
  Element type;
  const int64_t* targets;
  const float *normalizers, *factor, *counted;
  int64_t rows, classes;
};
cudaError_t cross_entropy_backward(const CrossEntropyBackward& a, cudaStream_t stream);

// dweight[id] = sum of dy[order[i]] over the i with ids[i] == id, in their order. Rows of other ids
// are left alone.
constexpr int64_t kEmbeddingChunk = 32;  // positions that one block sums
struct EmbeddingBackward {
  const void* dy;  // (positions, width) of type
  Element type;
  const int32_t* ids;    // (positions), sorted
  const int64_t* order;  // (positions): where each came from
  void* dweight;         // (., width) of weight_type
  Element weight_type;
  float* partials;  // (ceil(positions / kEmbeddingChunk), 2, width), workspace
  int64_t positions, width;
  bool adds;  // to what dweight has
};
cudaError_t embedding_backward(const EmbeddingBackward& a, cudaStream_t stream);

// *counted = how many of the targets are not ignored: whose loss and gradient the kernels above
// leave at 0.
constexpr int64_t kIgnored = -100;
cudaError_t cross_entropy_counted(const int64_t* targets, int64_t count, float* counted,
                                  cudaStream_t stream);

// *mean = sum(values) / *counted, summed in float64.
cudaError_t mean(const float* values, int64_t count, const float* counted, float* mean,
                 cudaStream_t stream);

}  // namespace flashstep::ops_cuda
