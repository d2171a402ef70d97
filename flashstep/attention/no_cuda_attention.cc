#include "flashstep/attention/implementations.h"

namespace flashstep::internal {

const AttentionKernel kCudaKernel = {"cuda", nullptr, nullptr, nullptr};

}  // namespace flashstep::internal
