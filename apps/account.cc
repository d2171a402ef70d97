// flashstep account: calculators with their derivations. Each topic is a command of its own;
// without one they are listed.
#include "flashstep/profile/account.h"

#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "apps/commands.h"
#include "apps/plan_flags.h"

namespace flashstep::apps {
namespace {

// One for the command and all its topics.
using OutputDirectory = std::shared_ptr<std::string>;

void add_out(CLI::App& command, const OutputDirectory& directory) {
  command.add_option("--out", *directory, "Also write account_TOPIC.* into this directory");
}

void print(const std::string& topic, const measure::Table& table, const std::string& directory) {
  make_output_directory(directory);
  show(tools::account_report(table), directory, "account_" + topic);
  std::cout << "\n";
}

// A topic: its inputs, whose flags `add_flags` adds, live as long as the parser.
template <typename Inputs>
void add_topic(CLI::App& account, const OutputDirectory& directory, const char* name,
               const char* help, measure::Table (*calculator)(const Inputs&),
               void (*add_flags)(CLI::App& topic, Inputs& inputs)) {
  CLI::App* topic = account.add_subcommand(name, help);
  add_out(*topic, directory);
  auto inputs = std::make_shared<Inputs>();
  add_flags(*topic, *inputs);
  topic->callback([=] { print(name, calculator(*inputs), *directory); });
}

CLI::Option* option(CLI::App& topic, const char* name, auto& value, const char* help) {
  return topic.add_option(name, value, help)->capture_default_str();
}

void add_model_flags(CLI::App& topic, ModelConfig& model) {
  option(topic, "--size", model.size, "Named size; the flags below override it")
      ->check(CLI::IsMember(model_size_names()));
  const CLI::Range range(1, 1 << 30);
  add_number(topic, "--vocab", model.vocab_size, range, "Tokens in the vocabulary");
  add_number(topic, "--d-model", model.d_model, range, "Width");
  add_number(topic, "--d-ff", model.d_ff, range, "Width inside the feed-forward network");
  add_number(topic, "--layers", model.num_layers, range, "Blocks");
  add_number(topic, "--heads", model.num_heads, range, "Heads");
  add_number(topic, "--kv-heads", model.num_kv_heads, range, "Heads of keys and values");
  add_number(topic, "--window", model.window, range, "Keys that a query sees, W");
  topic.add_flag("--tie-embeddings", model.tie_embeddings, "One weight for embedding and head");
}

void add_step_flags(CLI::App& topic, tools::StepAccount& step) {
  add_model_flags(topic, step.model);
  add_number(topic, "--context", step.model.context_length, {1, 1 << 24}, "Tokens of a row");
  option(topic, "--batch", step.batch_size, "Rows")->check(CLI::Range(1, 1 << 20));
  add_choice(topic, "--mode", step.mode, {"forward", "forward-backward", "step"}, "What is run");
  add_choice(topic, "--precision", step.precision, {"fp32", "bf16"}, "bf16 by autocast");
  add_choice(topic, "--attention", step.attention, {"kernel", "naive"},
             "naive keeps the matrices of weights");
  add_choice(topic, "--device", step.device, {"cuda", "cpu"}, "Where it is run");
}

void add_feed_forward_flags(CLI::App& topic, FeedForward& layer) {
  option(topic, "--d-model", layer.d_model, "D");
  option(topic, "--d-ff", layer.d_ff, "F");
  option(topic, "--matrices", layer.matrices, "3 (SwiGLU) or 2 matrices a layer");
  option(topic, "--element-bytes", layer.element_bytes, "Bytes of an element on the wire");
}

void add_accelerator_flags(CLI::App& topic, Accelerator& accelerator) {
  option(topic, "--flops", accelerator.flops_per_s, "C, FLOP/s of an accelerator");
  option(topic, "--bandwidth", accelerator.bytes_per_s, "W, bytes/s that it sends");
}

void add_attention_flags(CLI::App& topic, tools::AttentionAccount& attention) {
  option(topic, "--batch", attention.batch_size, "Rows");
  option(topic, "--heads", attention.heads, "Heads");
  option(topic, "--context", attention.contexts, "N, a list")->delimiter(',');
  option(topic, "--head-dim", attention.head_dims, "D, a list")->delimiter(',');
  topic.add_flag("--causal", attention.causal, "With the causal mask");
  option(topic, "--precision", attention.precision, "fp32, bf16");
  option(topic, "--memory-gb", attention.memory_gb, "Of the device, 10^9 bytes");
}

void add_recompute_flags(CLI::App& topic, tools::RecomputeAccount& recompute) {
  add_step_flags(topic, recompute.step);
  option(topic, "--saved-mib", recompute.saved_mib, "Kept by a block; 0: by the formula");
  option(topic, "--boundary-mib", recompute.boundary_mib, "A block's input; 0: by the formula");
}

void add_sharding_flags(CLI::App& topic, tools::ShardingAccount& sharding) {
  add_model_flags(topic, sharding.model);
  option(topic, "--ranks", sharding.ranks, "A list")->delimiter(',');
  option(topic, "--sent", sharding.sent, "fp32, bf16: what travels");
}

void add_ring_flags(CLI::App& topic, tools::RingAccount& ring) {
  option(topic, "--megabytes", ring.megabytes, "Of the tensor, a list")->delimiter(',');
  option(topic, "--ranks", ring.ranks, "A list")->delimiter(',');
  option(topic, "--gigabytes-per-s", ring.gigabytes_per_s, "Of a link, one direction");
  option(topic, "--latency-us", ring.latency_us, "Of a message besides its bytes");
}

void add_mesh_flags(CLI::App& topic, tools::MeshAccount& mesh) {
  add_feed_forward_flags(topic, mesh.layer);
  add_accelerator_flags(topic, mesh.accelerator);
  option(topic, "--blocks", mesh.blocks, "Layers");
  option(topic, "--tokens", mesh.tokens,
         "Of a device, whose activations count; 0: the state alone");
  option(topic, "--gpu-gb", mesh.gpu_gb, "Memory of a GPU");
  option(topic, "--limit-gb", mesh.limit_gb, "Memory that a device must stay below");
  option(topic, "--x", mesh.mesh.data, "FSDP ranks");
  option(topic, "--y", mesh.mesh.tensor, "TP ranks");
  option(topic, "--mx", mesh.mesh.data_links, "Links for X");
  option(topic, "--my", mesh.mesh.tensor_links, "Links for Y");
}

void add_bounds_flags(CLI::App& topic, tools::BoundsAccount& bounds) {
  add_feed_forward_flags(topic, bounds.layer);
  add_accelerator_flags(topic, bounds.accelerator);
  option(topic, "--tokens", bounds.tokens, "B, of the whole batch");
  option(topic, "--ranks", bounds.ranks, "Devices for which times are given");
}

void add_topics(CLI::App& account, const OutputDirectory& directory) {
  const auto add = [&](auto... topic) { add_topic(account, directory, topic...); };
  add("step", "Parameters, FLOPs and memory of a pass", tools::account_step, add_step_flags);
  add("block", "What one block keeps for backward, by tensor", tools::account_block,
      add_step_flags);
  add("attention", "Memory of attention by the formula", tools::account_attention,
      add_attention_flags);
  add("recompute", "Schemes of recomputation, best group size", tools::account_recompute,
      add_recompute_flags);
  add("sharding", "DDP and ZeRO: state and traffic of a rank", tools::account_sharding,
      add_sharding_flags);
  add("ring", "All-reduce in rings, and otherwise", tools::account_ring, add_ring_flags);
  add("mesh", "Communication accounting of feed-forward layers (2025)", tools::account_mesh,
      add_mesh_flags);
  add("bounds", "DP, FSDP, TP and FSDP + TP: most devices (2026)", tools::account_bounds,
      add_bounds_flags);
}

void add_plan(CLI::App& account, const OutputDirectory& directory) {
  struct Inputs {
    std::string config;
    std::vector<std::string> assignments;
    PlanFlags planned;
  };
  auto inputs = std::make_shared<Inputs>();
  CLI::App* topic = account.add_subcommand(
      "plan", "Memory and time of a config's run on each rank (train --plan)");
  add_out(*topic, directory);
  topic->add_option("config", inputs->config, "As for train")->required();
  topic->add_option("--set", inputs->assignments, "As for train")->allow_extra_args(false);
  inputs->planned.add_options(*topic);
  topic->callback([=] {
    make_output_directory(*directory);
    const Config config = load_config(inputs->config, inputs->assignments);
    show(tools::plan_report(inputs->planned.inputs(config)), *directory, "account_plan");
  });
}

}  // namespace

void add_account(CLI::App& app) {
  CLI::App* account = app.add_subcommand("account", "What a model, a step, a division must cost");
  auto directory = std::make_shared<std::string>();
  add_out(*account, directory);
  account->require_subcommand(0, 1);
  add_topics(*account, directory);
  add_plan(*account, directory);
  const auto print_all = [directory] {
    for (const auto& [topic, table] : tools::all_accounts()) print(topic, table, *directory);
  };
  CLI::App* all = account->add_subcommand("all", "All of these but plan with the handouts' inputs");
  add_out(*all, directory);
  all->callback(print_all);
  account->footer(
      "Memory is in MiB and GiB (powers of 1,024), what is sent in MB and GB (powers of 1,000); "
      "so\n"
      "is memory that stands beside what is sent or beside a maker's figure.");
  account->callback([account, directory, print_all] {
    if (!account->get_subcommands().empty()) return;
    if (!directory->empty()) return print_all();
    std::cout << "Topics, each with its inputs as flags:\n";
    for (const CLI::App* topic : account->get_subcommands(nullptr)) {
      std::cout << "  flashstep account " << std::left << std::setw(12) << topic->get_name()
                << topic->get_description() << "\n";
    }
  });
}

}  // namespace flashstep::apps
