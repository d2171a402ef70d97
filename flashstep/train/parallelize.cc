#include "flashstep/train/parallelize.h"

#include <utility>

#include "flashstep/detail/module_synchronizer.h"
#include "flashstep/error.h"
#include "flashstep/optim.h"

namespace flashstep {
namespace {

using torch::Tensor;

class DataParallelism : public Parallelism {
 public:
  DataParallelism(const torch::nn::Module& module, const Group& group,
                  const ReducerOptions& options)
      : synchronizer_(module, group, options) {}
  const Group* group() const override { return &synchronizer_.group(); }
  GradientReducer* reducer() const override { return &synchronizer_.reducer(); }
  std::shared_ptr<void> begin_micro_batch(bool is_last) override {
    if (!is_last) return std::make_shared<GradientReducer::NoSync>(reducer()->no_sync());
    synchronizer_.before_forward();
    return nullptr;
  }
  void synchronize_gradients() override { synchronizer_.finish(); }

 private:
  mutable ModuleSynchronizer synchronizer_;
};

}  // namespace

std::shared_ptr<Parallelism> parallelize(torch::nn::Module& module, const ParallelConfig& config,
                                         Group* group) {
  const int world_size = group == nullptr ? 1 : group->world_size();
  require(config.world_size == 0 || config.world_size == world_size, "[parallel] expected ",
          config.world_size, " processes (parallel.world_size), got ", world_size);
  if (group == nullptr) return std::make_shared<Parallelism>();
  require(config.wrapper != "none",
          "[parallel] expected one process for parallel.wrapper none, got ", world_size);
  ReducerOptions options;
  options.strategy = strategy_by_name(config.wrapper);
  options.bucket_megabytes = config.bucket_megabytes;
  options.peer_copies = config.peer_copies == "all";
  if (config.flat_buckets != "chosen") options.flat_buckets = config.flat_buckets == "yes";
  return std::make_shared<DataParallelism>(module, *group, options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const torch::optim::AdamWOptions& options,
                                                        const ParallelConfig& config,
                                                        const Parallelism& parallel,
                                                        at::ScalarType moments) {
  if (parallel.group() == nullptr || config.shard_optimizer == "none") {
    auto optimizer = std::make_unique<AdamW>(module.parameters(), options);
    optimizer->keep_moments_in(moments);
    return optimizer;
  }
  ShardOptions shards;
  shards.peer_copies = config.peer_copies != "none";
  if (config.shard_optimizer == "flat") {
    shards.mode = ShardMode::kFlat;
    shards.reducer = parallel.reducer();
  }
  auto optimizer =
      std::make_unique<ShardedAdamW>(module.parameters(), options, *parallel.group(), shards);
  optimizer->keep_moments_in(moments);
  return optimizer;
}

}  // namespace flashstep
