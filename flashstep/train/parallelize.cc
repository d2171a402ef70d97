#include "flashstep/train/parallelize.h"

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "flashstep/detail/module_synchronizer.h"
#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/model.h"
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
  void synchronize_buffers() override { synchronizer_.broadcast_buffers(); }

 private:
  mutable ModuleSynchronizer synchronizer_;
};

class FullSharding : public Parallelism {
 public:
  FullSharding(torch::nn::Module& module, const Group& group, const FullyShardOptions& options)
      : module_(module), sharded_(module, group, options) {}
  const Group* group() const override { return &sharded_.group(); }
  ShardedUnits* units() const override { return &sharded_.units(); }
  void synchronize_buffers() override { broadcast_buffers(module_.buffers(), *group()); }
  Tensor call(const std::function<Tensor()>& forward) override {
    sharded_.before_forward();
    try {
      UnitCall call(module_);
      Tensor result = forward();
      call.watch(result);
      sharded_.after_forward();
      call.end();
      return result;
    } catch (...) {
      sharded_.explain();
    }
  }

 private:
  torch::nn::Module& module_;
  ShardedModule sharded_;
};

// The blocks are units: each is called with its parameters whole.
void call_blocks_as_units(TransformerImpl& model) {
  model.set_block_runner(
      [inner = model.block_runner()](std::span<const BlockCall> blocks, const Tensor& x) {
        std::vector<BlockCall> calls(blocks.begin(), blocks.end());
        for (BlockCall& call : calls) {
          call.forward = [forward = call.forward, module = call.module](const Tensor& input) {
            UnitCall unit(*module);
            unit.watch_input(input);
            Tensor output = forward(input);
            unit.watch(output);
            unit.end();
            return output;
          };
        }
        return inner(calls, x);
      });
}

std::shared_ptr<Parallelism> shard_fully(torch::nn::Module& module, const ParallelConfig& config,
                                         const Group& group, const ParallelizeOptions& given) {
  FullyShardOptions options;
  options.peer_copies = config.peer_copies == "all";
  options.shard_ranks = static_cast<int>(config.shard_ranks);
  // On CPUs autocast casts what is whole.
  if (group.device().is_cuda()) options.compute_dtype = given.autocast;
  options.cast_undivided = false;
  options.device = group.device();
  options.fill = given.fill;
  return full_sharding(module, group, options);
}

}  // namespace

std::shared_ptr<Parallelism> data_parallelism(const torch::nn::Module& module, const Group& group,
                                              const ReducerOptions& options) {
  return std::make_shared<DataParallelism>(module, group, options);
}

std::shared_ptr<Parallelism> full_sharding(torch::nn::Module& module, const Group& group,
                                           const FullyShardOptions& options) {
  if (auto* model = module.as<TransformerImpl>()) call_blocks_as_units(*model);
  return std::make_shared<FullSharding>(module, group, options);
}

std::shared_ptr<Parallelism> parallelize(torch::nn::Module& module, const ParallelConfig& config,
                                         Group* group, const ParallelizeOptions& given) {
  const int world_size = group == nullptr ? 1 : group->world_size();
  check_processes(config, world_size);
  if (group == nullptr) return std::make_shared<Parallelism>();
  if (shards_parameters(config, group)) return shard_fully(module, config, *group, given);
  ReducerOptions options;
  options.strategy = strategy_by_name(config.wrapper);
  options.bucket_megabytes = config.bucket_megabytes;
  options.peer_copies = config.peer_copies == "all";
  options.gradient_as_bucket_view = true;  // nobody keeps a step's gradients
  if (config.flat_buckets != "chosen") options.flat_buckets = config.flat_buckets == "yes";
  return data_parallelism(module, *group, options);
}

bool shards_parameters(const ParallelConfig& config, const Group* group) {
  return config.shard_optimizer == "full" && group != nullptr && group->world_size() > 1;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const torch::optim::AdamWOptions& options, const ParallelConfig& config,
    const Parallelism& parallel, at::ScalarType moments) {
  const bool is_divided = config.shard_optimizer == "whole" || config.shard_optimizer == "flat";
  if (parallel.group() == nullptr || !is_divided) {
    auto optimizer = std::make_unique<AdamW>(groups, options);
    optimizer->keep_moments_in(moments);
    return optimizer;
  }
  ShardOptions shards;
  shards.peer_copies = config.peer_copies != "none";
  if (config.shard_optimizer == "flat") {
    shards.mode = ShardMode::kFlat;
    shards.reducer = parallel.reducer();
  }
  auto optimizer = std::make_unique<ShardedAdamW>(groups, options, *parallel.group(), shards);
  optimizer->keep_moments_in(moments);
  return optimizer;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const torch::optim::AdamWOptions& options,
                                                        const ParallelConfig& config,
                                                        const Parallelism& parallel,
                                                        at::ScalarType moments) {
  return make_optimizer({torch::optim::OptimizerParamGroup(module.parameters())}, options, config,
                        parallel, moments);
}

}  // namespace flashstep
