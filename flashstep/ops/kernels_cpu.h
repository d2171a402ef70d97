// The vector kernels of this room for the CPU, without torch headers: rows [begin, end) of
// contiguous matrices, float32 arithmetic, the instruction set chosen at run time. A result does
// not depend on how rows are divided among calls.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashstep::kernels {

enum class Element { kFloat32, kBfloat16 };

// y = weight * (x * rstd), rstd = 1 / sqrt(mean(x^2) + epsilon), for each row.
struct RmsNormForward {
  const void* x;  // (rows, width) of x_type
  Element x_type;
  const float* weight;  // (width)
  void* y;              // (rows, width) of y_type
  Element y_type;
  float* rstd;  // (rows)
  int64_t width;
  float epsilon;
};
void rms_norm_forward(const RmsNormForward& a, int64_t begin, int64_t end);

// With g = dy * weight and xhat = x * rstd: dx = rstd * (g - xhat * mean(g * xhat)), and
// dweight += sum over the rows of dy * xhat.
struct RmsNormBackward {
  const void* x;
  Element x_type;
  const float* weight;
  const float* rstd;
  const void* dy;  // (rows, width) of y_type
  Element y_type;
  void* dx;  // (rows, width) of x_type
  int64_t width;
};
void rms_norm_backward(const RmsNormBackward& a, int64_t begin, int64_t end, float* dweight);

// y = silu(a) * b over elements [begin, end), silu(a) = a / (1 + exp(-a)).
struct SwigluForward {
  const void *a, *b;
  void* y;
  Element type;
};
void swiglu_forward(const SwigluForward& args, int64_t begin, int64_t end);

// da = dy * b * s * (1 + a * (1 - s)) and db = dy * a * s with s = 1 / (1 + exp(-a)).
struct SwigluBackward {
  const void *a, *b, *dy;
  void *da, *db;
  Element type;
};
void swiglu_backward(const SwigluBackward& args, int64_t begin, int64_t end);

// Rotates pairs (x[2i], x[2i+1]) of a row by the angle whose cosine and sine stand at
// cos[position][i] and sin[position][i]; by minus the angle if `inverse`.
// Row r of [begin, end) is outer index r / positions and position r % positions.
struct Rope {
  const void* x;
  void* y;  // of strides of its own
  Element type;
  const float *cos, *sin;  // (positions, head_dim / 2)
  int64_t heads, positions, head_dim;
  int64_t batch_stride, head_stride, position_stride;  // in elements, of x
  int64_t y_batch_stride, y_head_stride, y_position_stride;
  bool inverse;
};
void rope(const Rope& a, int64_t begin, int64_t end);

// losses[r] = log(sum(exp(logits[r]))) - logits[r][targets[r]] and, unless dlogits is null,
// dlogits[r] = (softmax(logits[r]) - one_hot(targets[r])) * scale. dlogits may be logits. Of an
// ignored target both are 0.
struct CrossEntropy {
  const void* logits;  // (rows, classes)
  void* dlogits;       // the same shape and type, or null
  Element type;
  const int64_t* targets;  // (rows), in [0, classes) or `ignored`
  float* losses;           // (rows)
  int64_t classes, ignored;
  float scale;
};
void cross_entropy(const CrossEntropy& a, int64_t begin, int64_t end);

}  // namespace flashstep::kernels
