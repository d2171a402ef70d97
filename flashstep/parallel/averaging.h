// How a reduction's buckets become means, decided from the options and what carries the gradients.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "flashstep/comm/peer_mean.h"
#include "flashstep/group.h"
#include "flashstep/parallel/gradient_scatter.h"
#include "flashstep/parallel/reduction.h"

namespace flashstep {

struct Averaging {
  const Group& group;
  std::optional<at::ScalarType> communication_dtype;
  bool in_place = false;  // reduced where the gradients lie; several a bucket: NCCL only
  // Where set, means are taken by copies from GPU to GPU, not by NCCL.
  std::shared_ptr<PeerMean> peers;
  // Where set, it takes full buckets instead of an all-reduce, and gradients end there.
  std::shared_ptr<GradientScatter> scatter;
};

// All ranks call it, with the same options and parameters, and decide the same.
Averaging make_averaging(const ReducedParameters& parameters, const Group& group,
                         const ReducerOptions& options);

// From now on full buckets go to `scatter`; null: they are averaged again. Where the options ask
// for nothing else: between GPUs of one machine, which are fast to reach, gradients travel from
// where they lie, whole; else each bucket is reduce-scattered as one flat tensor.
void set_scatter(Averaging& averaging, const ReducedParameters& parameters,
                 const ReducerOptions& options, std::shared_ptr<GradientScatter> scatter);

}  // namespace flashstep
