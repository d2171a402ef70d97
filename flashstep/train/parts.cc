#include "flashstep/train/parts.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AllocatorConfig.h>
#include <torch/utils.h>

#include "flashstep/amp.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/optim.h"
#include "flashstep/products/product.h"
#include "flashstep/train/module_tensors.h"
#include "flashstep/train/parallelize.h"
#include "flashstep/train/tensor_memory.h"

namespace flashstep {
namespace {

std::optional<at::ScalarType> autocast_dtype(const TrainConfig& train) {
  if (train.precision == "fp32") return std::nullopt;
  return train.precision == "bf16" ? at::kBFloat16 : at::kHalf;
}

torch::optim::AdamWOptions adamw_options(const Config& config) {
  return torch::optim::AdamWOptions(config.schedule.learning_rate)
      .betas({config.optimizer.beta1, config.optimizer.beta2})
      .eps(config.optimizer.eps)
      .weight_decay(config.optimizer.weight_decay);
}

std::unique_ptr<MuonOptions> muon_options(const Config& config) {
  auto options = std::make_unique<MuonOptions>(adamw_options(config));
  options->momentum(config.optimizer.momentum);
  return options;
}

// Of parameters that lie row by row, as a model's do.
PartFill fill_from(const StoredTensors& weights) {
  return [weights](const std::string& name, const at::Tensor& values, int64_t begin) {
    const auto stored = std::ranges::find(weights, name, &StoredTensor::name);
    values.copy_(stored->read(begin, begin + values.numel()));
  };
}

// `shards`: the model is not written, and `fill` gives its values.
Transformer make_model(const Config& config, torch::Device device, bool shards, PartFill& fill,
                       const StoredTensors& weights) {
  const TrainConfig& train = config.train;
  const auto seed = static_cast<uint64_t>(train.seed);
  const bool is_narrow = train.weights == "bf16";
  const torch::TensorOptions place(shards ? torch::Device(torch::kCPU) : device);
  Transformer model(config.model, shards ? std::nullopt : std::make_optional(seed),
                    place.dtype(shards && is_narrow ? at::kBFloat16 : at::kFloat));
  if (!weights.empty()) {
    try {
      check_weights(module_tensors(*model), weights, train.init_from);
    } catch (const UserError& error) {
      throw AgreedError(error);  // all ranks have the same
    }
    if (shards) {
      fill = fill_from(weights);
    } else {
      load_module(*model, weights, train.init_from);
    }
  } else if (shards) {
    fill = model->part_fill(seed);
  }
  model->set_recompute(recompute_by_name(train.recompute), train.recompute_group,
                       train.recompute_blocks);
  model->set_short_stream(has_short_stream(train, device.is_cuda()));
  model->set_float8_products(train.bf16_products == "fp8");
  if (is_narrow) keep_weights_in(at::kBFloat16, model->parameters());
  const bool has_narrow_gradients = has_bf16_gradients(config, device.is_cuda());
  if (has_narrow_gradients || is_narrow)
    keep_gradients_in(has_narrow_gradients ? at::kBFloat16 : at::kFloat, model->parameters());
  return model;
}

}  // namespace

void set_up_process(const TrainConfig& config) {
  keep_memory_of_tensors();
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(config.deterministic, /*warn_only=*/false);
  // Filling fresh memory with NaN finds bugs, not nondeterminism, and costs a pass over every
  // tensor.
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(config.deterministic);
  context.setBenchmarkCuDNN(false);
  // cuBLAS keeps its promise only with a fixed workspace (its documentation, "Results
  // reproducibility").
  if (config.deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  set_float32_products(config.fp32_products == "split" ? Float32Products::kSplit
                                                       : Float32Products::kExact);
  torch::manual_seed(static_cast<uint64_t>(config.seed));
}

void let_memory_grow(torch::Device device) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (std::getenv(name) != nullptr) return;
  }
  if (device.is_cuda()) c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

StepOptions step_options(const Config& config) {
  StepOptions step;
  step.accumulation_steps = config.train.accumulation_steps;
  step.max_norm = config.optimizer.clip_norm;
  step.update_in_backward = config.optimizer.in_backward;
  step.precision = precision_by_name(config.train.precision);
  return step;
}

std::vector<torch::optim::OptimizerParamGroup> optimizer_groups(const Transformer& model,
                                                                const Config& config) {
  if (config.optimizer.kind == "adamw")
    return {torch::optim::OptimizerParamGroup(model->parameters())};
  std::vector<at::Tensor> matrices, others;
  for (const auto& item : model->named_parameters()) {
    const bool is_of_block = item.key().starts_with("layers.") && item.value().dim() == 2;
    (is_of_block ? matrices : others).push_back(item.value());
  }
  return {{std::move(matrices), muon_options(config)},
          {std::move(others), std::make_unique<torch::optim::AdamWOptions>(adamw_options(config))}};
}

TrainedParts make_parts(const Config& config, torch::Device device, Group* group,
                        const StoredTensors& weights) {
  ParallelizeOptions spread{autocast_dtype(config.train)};
  Transformer model =
      make_model(config, device, shards_parameters(config.parallel, group), spread.fill, weights);
  std::shared_ptr<Parallelism> parallel = parallelize(*model, config.parallel, group, spread);
  const auto moments = config.train.moments == "bf16" ? at::kBFloat16 : at::kFloat;
  auto optimizer = make_optimizer(optimizer_groups(model, config), adamw_options(config),
                                  config.parallel, *parallel, moments);
  return {std::move(model), std::move(parallel), std::move(optimizer)};
}

}  // namespace flashstep
