// What one rank has to say at the end of a step, heard by all: else the others train on with what
// it spoiled, and learn of it when it has left.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep {

class CollectiveError {
 public:
  // Starts to tell the other ranks whether there is a `mistake`, in a message of 8 bytes through
  // Gloo. Every rank does at the same place among its collectives.
  CollectiveError(std::optional<UserError> mistake, const Group& group);

  // On every rank the same: the first rank's mistake, or nothing. Waits for all ranks' hosts; texts
  // travel only when there is one.
  std::optional<UserError> first();

 private:
  std::optional<UserError> mistake_;
  const Group& group_;
  at::Tensor speaks_;  // (1), int64: 1 where some rank has one
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace flashstep
