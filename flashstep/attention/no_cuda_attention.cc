#include "flashstep/attention/implementations.h"

namespace flashstep::internal {

int cuda_capability_major(int) { return 0; }

const AttentionKernel kCudaKernel = {"cuda", nullptr, nullptr, nullptr};

}  // namespace flashstep::internal
