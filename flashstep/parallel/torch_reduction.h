// c10d's own Reducer, which torch's DistributedDataParallel is made of, behind our interface: the
// baseline that ours is compared with.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "flashstep/parallel/reduction.h"

namespace flashstep {

class TorchReduction : public Reduction {
 public:
  // UserError for options that it has no counterpart for here.
  TorchReduction(ReducedParameters parameters, const Group& group, const ReducerOptions& options);

  void prepare_for_backward() override;
  void finish() override;
  bool is_unfinished() const override { return false; }
  std::string transport() const override;

 private:
  std::unique_ptr<c10d::Reducer> reducer_;
  bool is_prepared_ = false;
};

}  // namespace flashstep
