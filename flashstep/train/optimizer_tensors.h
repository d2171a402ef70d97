// The optimizer of a run in its checkpoints.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/serialize/input-archive.h>

#include "flashstep/detail/named_tensors.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/parallel/state_pieces.h"
#include "flashstep/parallel/stored_tensors.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

// load_optimizer_state for `parameters` alone, those of which `state` holds something; others keep
// what they have. A state that nobody has memory for at once is loaded so.
void add_optimizer_state(AdamW& optimizer, const NamedTensors& parameters,
                         const NamedTensors& state);

// What a checkpoint keeps of an optimizer. AdamW's state, sharded or not, is by parameter: all
// ranks read and write it, each its share. That of others is one tensor, the bytes of their own
// torch::save.
class OptimizerTensors {
 public:
  // `parameters`: the module's. The job must outlive it.
  OptimizerTensors(const Job& job, NamedTensors parameters);

  bool is_adamw() const { return adamw_ != nullptr; }
  bool are_divided() const {
    return adamw_ != nullptr && (sharded_ != nullptr || units_ != nullptr);
  }

  // AgreedError if AdamW has parameters that are not the module's, whose state has no name to be
  // kept under.
  void check_parameters() const;

  // AgreedError if it has state that its save() does not write: LibTorch's Optimizer::save(), where
  // a class does not override it, writes nothing.
  void check_state_is_saved() const;

  // Of the optimizer, the one inside of a sharded one: "torch::optim::SGD". An archive does not say
  // whose it is, and torch's Adam takes AdamW's.
  std::string class_name() const;

  // Those of this rank, not copies; if they are not divided, rank 0's are all. All ranks call it.
  NamedTensors read() const;

  // Of what any number of ranks wrote, this rank's, one parameter after the other, in place of what
  // the optimizer has. All ranks read the same tensors in the same order. open() before: UserError
  // for those that are another optimizer's or of other groups; it changes nothing.
  void open(const StoredTensors& written);
  void load(StoredTensors written);

 private:
  // What this rank updates of each parameter; `first_only`: but for what an earlier rank has too.
  std::vector<NamedPiece> own_pieces(bool first_only) const;

  // UserError if LibTorch cannot save it.
  void write_archive(const std::function<size_t(const void* data, size_t size)>& write) const;

  const Job& job_;
  AdamW* adamw_;                   // the one inside, if it is sharded; null: another optimizer
  ShardedOptimizerBase* sharded_;  // null: it is not
  const ShardedUnits* units_;      // null: parameters are not
  const NamedTensors parameters_;
  std::optional<torch::serialize::InputArchive> archive_;  // of another optimizer
};

}  // namespace flashstep
