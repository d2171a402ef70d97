#include "apps/workload_flags.h"

#include "apps/bench.h"
#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"

namespace flashstep::apps {
void WorkloadFlags::add_options(CLI::App& command) {
  command
      .add_option("--size", given_.sizes,
                  join(tools::workload_size_names()) +
                      "; all: those of 2025's handout; or d_model/d_ff/layers/heads")
      ->delimiter(',');
  add_number(command, "--context", given_.contexts, {0, 1 << 24},
             "Tokens of a row; 0: the size's own")
      ->delimiter(',');
  tools::Workload& common = given_.common;
  const auto word = [&](const char* name, std::string& value, const std::vector<std::string>& known,
                        const std::string& help) {
    command.add_option(name, value, help)->check(CLI::IsMember(known));
  };
  add_number(command, "--batch", common.batch_size, {1, 1 << 20}, "Rows");
  add_names(command, "--mode", given_.modes, tools::workload_modes(),
            join(tools::workload_modes()) + ": how much of a step");
  add_names(
      command, "--precision", given_.precisions, tools::workload_precisions(),
      "fp32, fp32-split and tf32 (GPUs), bf16 (autocast), bf16-fp8 (products of 8 bits; GPUs)");
  word("--moments", common.moments, {"fp32", "bf16"}, "AdamW's: fp32, bf16");
  word("--stream", common.stream, {"auto", "fp32", "bf16"},
       "The residual stream's, as train.stream: auto, fp32, bf16");
  word("--recompute", common.recompute, recompute_names(),
       "In backward, as train.recompute: " + join(recompute_names()));
  add_number(command, "--recompute-group", common.recompute_group, {1, 10'000},
             "As train.recompute_group");
  add_number(command, "--recompute-blocks", common.recompute_blocks, {0, 10'000},
             "As train.recompute_blocks");
  add_names(command, "--attention", given_.attentions, attention_implementations(),
            "Implementation of attention: " + join(attention_implementations()));
  add_device(command, given_.common.device);
  ModelConfig& model = common.model;
  add_number(command, "--d-model", model.d_model, {1, 1 << 20}, "Width of the residual stream");
  add_number(command, "--d-ff", model.d_ff, {1, 1 << 20}, "Width inside the feed-forward network");
  add_number(command, "--layers", model.num_layers, {1, 10'000}, "Transformer blocks");
  add_number(command, "--heads", model.num_heads, {1, 1 << 20}, "Attention heads");
  add_number(command, "--kv-heads", model.num_kv_heads, {1, 1 << 20},
             "Heads of keys and values (as many)");
  add_number(command, "--window", model.window, {1, 1 << 24},
             "Keys that a query sees (all up to its own)");
  command.add_flag("--tie-embeddings", model.tie_embeddings,
                   "One weight for the token embedding and the head");
  add_number(command, "--vocab", model.vocab_size, {1, 1 << 30}, "Tokens in the vocabulary");
  add_number(command, "--rope-theta", model.rope_theta, {1.0, 1e12},
             "Base of the rotary wavelengths (10000)");
  add_number(command, "--norm-epsilon", model.norm_epsilon, {0.0, 1.0},
             "Added to the mean square in RMSNorm (1e-5)");
  command
      .add_option("--clip", common.max_norm,
                  "Norm that gradients are clipped to (1); 0: not at all")
      ->check(CLI::NonNegativeNumber);
  add_number(command, "--seed", common.seed, {0, 1 << 30}, "Of weights and tokens (1)");
}

void WorkloadFlags::apply(tools::WorkloadAxes& axes) const {
  take_if_given(tools::sizes_named(given_.sizes), axes.sizes);
  take_if_given(given_.contexts, axes.contexts);
  take_if_given(given_.precisions, axes.precisions);
  take_if_given(given_.attentions, axes.attentions);
  take_if_given(given_.modes, axes.modes);
  axes.common = given_.common;
  axes.common.device = device_or_gpu(axes.common.device);
}

}  // namespace flashstep::apps
