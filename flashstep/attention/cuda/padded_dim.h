// The head dims that kernels are compiled for; others are padded with zeros to the next.
#pragma once

namespace flashstep::attention_cuda {

constexpr int kPaddedDims[] = {16, 32, 64, 96, 128, 192, 256};

// The smallest padded head dim that holds head_dim.
constexpr int padded_dim(int head_dim) {
  for (int padded : kPaddedDims) {
    if (head_dim <= padded) return padded;
  }
  return 0;
}

}  // namespace flashstep::attention_cuda
