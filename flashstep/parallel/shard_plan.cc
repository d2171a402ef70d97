#include "flashstep/parallel/shard_plan.h"

#include <limits>

#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/parallel/flat_shards.h"
#include "flashstep/parallel/reduction.h"
#include "flashstep/parallel/whole_shards.h"
#include "flashstep/sharded_optimizer.h"

namespace flashstep {
namespace {

double chosen_bytes(const NamedTensors& parameters, const Group& group,
                    const GradientReducer* reducer) {
  std::vector<at::Tensor> trained;
  double bytes = 0;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) continue;
    trained.push_back(parameter);
    bytes += static_cast<double>(parameter.nbytes());
  }
  // A reducer's buckets hold gradients, in the dtypes that its ranks have agreed on.
  for (size_t i = 0; reducer != nullptr && i < reducer->reduced_parameters().size(); ++i) {
    const at::Tensor& parameter = reducer->reduced_parameters()[i];
    const auto own = static_cast<double>(c10::elementSize(reducer->gradient_dtypes()[i]));
    bytes += static_cast<double>(parameter.numel()) *
             (own - static_cast<double>(parameter.element_size()));
  }
  return chosen_flat_bytes(bytes, goes_through_nccl(trained, group), group.world_size());
}

// Flat tensors are the reducer's buckets where there is a reducer.
double flat_bytes(const NamedTensors& parameters, const Group& group, const ShardOptions& options) {
  double megabytes = options.bucket_megabytes;
  if (options.reducer != nullptr) {
    const ReducerOptions& reducer = options.reducer->options();
    if (reducer.strategy == Strategy::kFlat) return std::numeric_limits<double>::infinity();
    megabytes = options.reducer->bucket_size_is_chosen() ? 0 : reducer.bucket_megabytes;
  }
  return megabytes > 0 ? megabytes * kBytesPerMegabyte
                       : chosen_bytes(parameters, group, options.reducer);
}

// Ranks that divide differently send each other what nobody awaits, or wait for ever.
void check_agreement(const NamedTensors& parameters, const Group& group,
                     const ShardOptions& options, const std::vector<std::string>& more) {
  std::vector<std::string> lines = {
      str("mode ", options.mode == ShardMode::kFlat ? "flat" : "whole"),
      str("reducer ", options.reducer != nullptr ? "given" : "not given"),
      str("bucket_megabytes ", options.bucket_megabytes),
      str("part_megabytes ", options.part_megabytes),
      str("peer_copies ", options.peer_copies ? "yes" : "no")};
  lines.insert(lines.end(), more.begin(), more.end());
  for (const auto& [number, tensor] : parameters)
    lines.push_back(line_of(tensor, "parameter " + number));
  require_agreement(lines, group, "[ShardedOptimizer] expected the same parameters and options",
                    "no more parameters");
}

void require_undivided(const std::vector<at::Tensor>& parameters) {
  require(
      divided_tensors(parameters).empty(),
      "[ShardedOptimizer] expected parameters that every rank has whole, got shards of a fully ",
      "sharded module, whose state is divided with them: give them to the optimizer itself");
}

void check_whole(const NamedTensors& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& [number, tensor] : parameters) {
    refuse_left_shard("parameter " + number, tensor, "[ShardedOptimizer]");
    require(!tensor.is_meta(), "[ShardedOptimizer] expected parameters with memory, got parameter ",
            number, " on the meta device");
    tensors.push_back(tensor);
  }
  require_undivided(tensors);
}

}  // namespace

std::vector<OwnPiece> ShardPlan::add(const std::vector<GroupedParameter>& parameters) {
  for (const GroupedParameter& parameter : parameters) parameters_.push_back(parameter.tensor);
  return divide(parameters);
}

void ShardPlan::begin_update(const std::vector<OwnPiece>& own) {
  require_undivided(parameters_);
  require(
      means_ == nullptr || !means_->is_unfinished(),
      "[ShardedOptimizer] expected finish_gradient_synchronization() between backward and step");
  require(
      means_ == nullptr || !means_->holds_local_gradients(),
      "[ShardedOptimizer] expected means of the ranks' gradients, got this rank's own: the last "
      "backward of a step stands outside of no_sync, and comes to its end");
  bring_gradients(own);
}

std::unique_ptr<ShardPlan> make_shard_plan(const NamedTensors& parameters, const Group& group,
                                           const ShardOptions& options,
                                           const std::vector<std::string>& lines) {
  require(options.bucket_megabytes >= 0 && options.part_megabytes > 0,
          "[ShardedOptimizer] expected bucket_megabytes of at least 0 (0: chosen) and ",
          "part_megabytes above 0, got ", options.bucket_megabytes, " and ",
          options.part_megabytes);
  check_whole(parameters);
  check_agreement(parameters, group, options, lines);
  const double part_bytes = options.part_megabytes * kBytesPerMegabyte;
  std::unique_ptr<ShardPlan> plan;
  if (options.mode == ShardMode::kWhole) {
    plan = std::make_unique<WholeShards>(group, part_bytes, options.peer_copies);
  } else {
    plan = std::make_unique<FlatShards>(group, flat_bytes(parameters, group, options), part_bytes,
                                        options.reducer, options.peer_copies);
  }
  plan->use_means_of(options.reducer);
  return plan;
}

}  // namespace flashstep
