// The names of attention's implementations: a part of attention.h for those who only say which one,
// without LibTorch's headers.
#pragma once

#include <string>
#include <vector>

namespace flashstep {

// "auto" first, then every implementation of this build by name:
//   naive  the formula, with tensor operations; the reference, float64 allowed, any D
//   tiled  FlashAttention-2 with tensor operations on tiles, to be read beside the paper; any D
//   cpu    vectorised kernels; float32, bfloat16, float16, D a multiple of 8 up to 256
//   cuda   tensor-core kernels, NVIDIA GPUs from compute capability 8.0; the same dtypes and D
//   sdpa   PyTorch's at::scaled_dot_product_attention
// "auto" takes the fastest that is right for device, dtype and shape, from a table in auto.cc that
// names its measurements; it never times anything at run time.
std::vector<std::string> attention_implementations();

}  // namespace flashstep
