#include "flashstep/train/parallelize.h"

#include <utility>

#include "flashstep/detail/module_synchronizer.h"
#include "flashstep/error.h"
#include "flashstep/optim.h"

namespace flashstep {
namespace {

using torch::Tensor;

// Replaces a () tensor by its mean over the ranks, where it lies.
void average(Tensor& value, const Group& group) {
  constexpr const char* kWhat = "averaging the loss";
  const torch::NoGradGuard no_grad;
  value = value.detach() / static_cast<double>(group.world_size());
  std::vector<Tensor> message = {value};
  group.wait(group.guarded(kWhat, [&] { return group.process_group().allreduce(message); }), kWhat);
}

}  // namespace

ParallelHooks parallelize(torch::nn::Module& module, const ParallelConfig& config, Group* group) {
  const int world_size = group == nullptr ? 1 : group->world_size();
  require(config.world_size == 0 || config.world_size == world_size, "[parallel] expected ",
          config.world_size, " processes (parallel.world_size), got ", world_size);
  if (group == nullptr) return {};
  require(config.wrapper != "none",
          "[parallel] expected one process for parallel.wrapper none, got ", world_size);
  ReducerOptions options;
  options.strategy = strategy_by_name(config.wrapper);
  options.bucket_megabytes = config.bucket_megabytes;
  options.peer_copies = config.peer_copies == "all";
  if (config.flat_buckets != "chosen") options.flat_buckets = config.flat_buckets == "yes";
  const auto synchronizer = std::make_shared<ModuleSynchronizer>(module, *group, options);
  GradientReducer& reducer = synchronizer->reducer();
  ParallelHooks hooks;
  hooks.rank = group->rank();
  hooks.world_size = world_size;
  hooks.group = group;
  hooks.reducer = &reducer;
  hooks.no_sync = [synchronizer, &reducer] {
    return std::make_shared<GradientReducer::NoSync>(reducer.no_sync());
  };
  hooks.before_last_backward = [synchronizer] { synchronizer->before_forward(); };
  hooks.synchronize_gradients = [synchronizer] { synchronizer->finish(); };
  hooks.average = [group](Tensor& value) { average(value, *group); };
  hooks.greatest = [group](int64_t value) { return group->all_reduce(value, Reduce::kMax); };
  hooks.bucket_order = [synchronizer, &reducer] { return reducer.bucket_order(); };
  hooks.bucket_megabytes = [synchronizer, &reducer] { return reducer.options().bucket_megabytes; };
  hooks.set_bucket_order = [synchronizer, &reducer, is_given = config.bucket_megabytes > 0](
                               const std::vector<int64_t>& order, double megabytes) {
    if (!order.empty()) reducer.set_bucket_order(order, is_given ? 0 : megabytes);
  };
  return hooks;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const torch::optim::AdamWOptions& options,
                                                        const ParallelConfig& config,
                                                        ParallelHooks& hooks,
                                                        at::ScalarType moments) {
  if (hooks.group == nullptr || config.shard_optimizer == "none") {
    auto optimizer = std::make_unique<AdamW>(module.parameters(), options);
    optimizer->keep_moments_in(moments);
    return optimizer;
  }
  ShardOptions shards;
  shards.peer_copies = config.peer_copies != "none";
  if (config.shard_optimizer == "flat") {
    shards.mode = ShardMode::kFlat;
    shards.reducer = hooks.reducer;
  }
  auto optimizer =
      std::make_unique<ShardedAdamW>(module.parameters(), options, *hooks.group, shards);
  optimizer->keep_moments_in(moments);
  if (optimizer->gradients_are_divided()) {
    hooks.gradients = [sharded = optimizer.get()] { return sharded->gradients(); };
    hooks.norm = [group = hooks.group,
                  device = module.parameters().front().device()](const auto& gradients) {
      return norm_over_ranks(global_norm(gradients).to(device), *group);
    };
  }
  return optimizer;
}

}  // namespace flashstep
