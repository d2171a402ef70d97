// Memory that all-gathers fill without kernels. NCCL's all-gather is a kernel that takes
// multiprocessors and, beside another kernel that is bound by memory, slows both: between two H200s
// it took as long as if the two had run one after the other. Out of memory that all ranks know of
// (a window) the copy engines do it, and take nothing but bandwidth.
// Source: NVIDIA, "NCCL user guide", sections on window registration and NCCL_CTA_POLICY_ZERO.
#pragma once

#include <ATen/core/Tensor.h>

#include "flashstep/comm/group.h"

namespace flashstep::comm {

// Less is plain memory: the allocator would round it up to as much.
inline constexpr int64_t kLeastWindowBytes = int64_t{10} << 20;

// Zeros, (numel) of the dtype and device of `options`; a window where the tensors go through NCCL,
// else plain memory. All ranks of the group call it, with the same numel and dtype, in the same
// order. The tensor may outlive the group.
at::Tensor window_zeros(int64_t numel, const at::TensorOptions& options, const Group& group);

}  // namespace flashstep::comm
