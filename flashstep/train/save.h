// Checkpoints of a training loop of one's own: everything that it needs to go on as if it had never
// stopped, written whole or not at all, in the form that flashstep train writes and reads.
//
//   const int64_t begin = flashstep::load_if_exists("run/checkpoints", net, optimizer);
//   for (int64_t step = begin; step < steps; ++step) {
//     ...
//     if ((step + 1) % 1000 == 0) flashstep::save("run/checkpoints", net, optimizer, step + 1);
//   }
#pragma once

#include <cstdint>
#include <filesystem>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "flashstep/parallel/distributed_data_parallel.h"
#include "flashstep/train/precision.h"

namespace flashstep {

// A module, a holder of one, or one that is wrapped.
class ModelRef {
 public:
  ModelRef(torch::nn::Module& module) : module_(module) {}  // NOLINT(google-explicit-constructor)
  template <typename M>
  ModelRef(const torch::nn::ModuleHolder<M>& holder)  // NOLINT(google-explicit-constructor)
      : module_(*holder.ptr()) {}
  template <typename M>
  ModelRef(DistributedDataParallel<M>& wrapped)  // NOLINT(google-explicit-constructor)
      : module_(*wrapped.module()), group_(&wrapped.group()), reducer_(&wrapped.reducer()) {}

  torch::nn::Module& module() const { return module_; }  // without the wrapper
  const Group* group() const { return group_; }          // null: none is known
  GradientReducer* reducer() const { return reducer_; }

 private:
  torch::nn::Module& module_;
  const Group* group_ = nullptr;
  GradientReducer* reducer_ = nullptr;
};

struct SaveOptions {
  int64_t keep = 2;                  // newest checkpoints that stay; 0: all
  GradientScaler* scaler = nullptr;  // fp16's, if there is one
};

// Writes DIRECTORY/step_00001000/: parameters, buffers, the optimizer's state, the random
// generators of all ranks, and `step`, the updates that are done. `optimizer` is any, sharded or
// not. With several ranks (the model is wrapped, or the optimizer sharded) all of them call it;
// rank 0's directory is written. What was saved before is whole whatever happens, and what fails on
// one rank (MachineError: a full disk) is thrown on all, who can go on.
void save(const std::filesystem::path& directory, ModelRef model,
          torch::optim::Optimizer& optimizer, int64_t step, const SaveOptions& options = {});

// Takes back the newest checkpoint that is whole, and returns its step; 0, and nothing is changed,
// if there is none. `model` and `optimizer` are those that were saved, on any number of ranks and
// however sharded. UserError, on all ranks, for a checkpoint of another model (what differs first
// is named) or another optimizer, and if all that is there is damaged. A sentence on stderr for
// each damaged one that was passed over, which the next
// save removes. The directory is one program's: what another one has written since is set aside,
// too.
int64_t load_if_exists(const std::filesystem::path& directory, ModelRef model,
                       torch::optim::Optimizer& optimizer, const SaveOptions& options = {});

}  // namespace flashstep
