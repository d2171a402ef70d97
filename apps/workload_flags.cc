#include "apps/workload_flags.h"

#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::apps {
namespace {

void replace(int64_t given, int64_t& value) {
  if (given > 0) value = given;
}

template <typename T>
void replace(const std::vector<T>& given, std::vector<T>& values) {
  if (!given.empty()) values = given;
}

template <typename T>
void replace(const std::optional<T>& given, T& value) {
  if (given) value = *given;
}

}  // namespace

void WorkloadFlags::add_options(CLI::App& command) {
  command
      .add_option("--size", given_.sizes,
                  join(tools::workload_size_names()) +
                      "; all: those of 2025's handout; or d_model/d_ff/layers/heads")
      ->delimiter(',');
  command.add_option("--context", given_.contexts, "Tokens of a row; 0: the size's own")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24));
  command.add_option("--batch", given_.common.batch_size, "Rows")->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--mode", given_.modes, join(tools::workload_modes()) + ": how much of a step")
      ->delimiter(',')
      ->check(CLI::IsMember(tools::workload_modes()));
  command
      .add_option("--precision", given_.precisions,
                  "fp32, fp32-split and tf32 (GPUs), bf16 (autocast)")
      ->delimiter(',')
      ->check(CLI::IsMember(tools::workload_precisions()));
  command.add_option("--moments", given_.common.moments, "AdamW's: fp32, bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command
      .add_option("--stream", given_.common.stream,
                  "The residual stream's, as train.stream: auto, fp32, bf16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}));
  command
      .add_option("--recompute", given_.common.recompute,
                  "In backward, as train.recompute: " + join(recompute_names()))
      ->check(CLI::IsMember(recompute_names()));
  command
      .add_option("--recompute-group", given_.common.recompute_group, "As train.recompute_group")
      ->check(CLI::Range(1, 10'000));
  command
      .add_option("--recompute-blocks", given_.common.recompute_blocks, "As train.recompute_blocks")
      ->check(CLI::Range(0, 10'000));
  command
      .add_option("--attention", given_.attentions,
                  "Implementation of attention: " + join(attention_implementations()))
      ->delimiter(',')
      ->check(CLI::IsMember(attention_implementations()));
  command.add_option("--device", given_.common.device, "cpu or cuda; the GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_hyperparameters(command);
}

void WorkloadFlags::add_hyperparameters(CLI::App& command) {
  const CLI::Range dimension(1, 1 << 20);
  ModelConfig& model = given_.common.model;
  command.add_option("--d-model", model.d_model, "Width of the residual stream")->check(dimension);
  command.add_option("--d-ff", model.d_ff, "Width inside the feed-forward network")
      ->check(dimension);
  command.add_option("--layers", model.num_layers, "Transformer blocks")
      ->check(CLI::Range(1, 10'000));
  command.add_option("--heads", model.num_heads, "Attention heads")->check(dimension);
  command.add_option("--vocab", model.vocab_size, "Tokens in the vocabulary")
      ->check(CLI::Range(1, 1 << 30));
  command.add_option("--rope-theta", rope_theta_, "Base of the rotary wavelengths (10000)")
      ->check(CLI::Range(1.0, 1e12));
  command.add_option("--norm-epsilon", norm_epsilon_, "Added to the mean square in RMSNorm (1e-5)")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--clip", max_norm_, "Norm that gradients are clipped to (1); 0: not at all")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--seed", seed_, "Of weights and tokens (1)")->check(CLI::Range(0, 1 << 30));
}

void WorkloadFlags::apply(tools::WorkloadAxes& axes) const {
  replace(tools::sizes_named(given_.sizes), axes.sizes);
  replace(given_.contexts, axes.contexts);
  replace(given_.precisions, axes.precisions);
  replace(given_.attentions, axes.attentions);
  replace(given_.modes, axes.modes);
  const ModelConfig& given = given_.common.model;
  ModelConfig& model = axes.common.model;
  for (int64_t ModelConfig::*field :
       {&ModelConfig::d_model, &ModelConfig::d_ff, &ModelConfig::num_layers,
        &ModelConfig::num_heads, &ModelConfig::vocab_size}) {
    replace(given.*field, model.*field);
  }
  replace(rope_theta_, model.rope_theta);
  replace(norm_epsilon_, model.norm_epsilon);
  replace(given_.common.batch_size, axes.common.batch_size);
  replace(max_norm_, axes.common.max_norm);
  axes.common.moments = given_.common.moments;
  axes.common.stream = given_.common.stream;
  axes.common.recompute = given_.common.recompute;
  axes.common.recompute_group = given_.common.recompute_group;
  axes.common.recompute_blocks = given_.common.recompute_blocks;
  replace(seed_, axes.common.seed);
  axes.common.device = given_.common.device;
  if (axes.common.device.empty()) {
    axes.common.device = measure::list_gpus().empty() ? "cpu" : "cuda";
  }
}

}  // namespace flashstep::apps
