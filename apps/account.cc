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

using tools::Account;

// One for the command and all its topics.
using OutputDirectory = std::shared_ptr<std::string>;

void add_out(CLI::App& command, const OutputDirectory& directory) {
  command.add_option("--out", *directory, "Also write account_TOPIC.* into this directory");
}

void print(const Account& account, const std::string& directory) {
  make_output_directory(directory);
  show(tools::account_report(account), directory, "account_" + account.name);
  std::cout << "\n";
}

template <typename Inputs>
using Calculator = Account (*)(const Inputs&);

// A topic: its inputs live as long as the parser.
template <typename Inputs>
CLI::App* add_topic(CLI::App& account, const char* name, const char* help,
                    Calculator<Inputs> calculator, const std::shared_ptr<Inputs>& inputs,
                    const OutputDirectory& directory) {
  CLI::App* topic = account.add_subcommand(name, help);
  add_out(*topic, directory);
  topic->callback([=] { print(calculator(*inputs), *directory); });
  return topic;
}

CLI::Option* option(CLI::App& topic, const char* name, auto& value, const char* help) {
  return topic.add_option(name, value, help)->capture_default_str();
}

void add_model(CLI::App& topic, ModelConfig& model) {
  option(topic, "--size", model.size, "Named size; the flags below override it")
      ->check(CLI::IsMember(model_size_names()));
  const auto by_hand = [&](const char* name, int64_t& value, const char* help) {
    topic.add_option(name, value, help)->check(CLI::Range(1, 1 << 30));
  };
  by_hand("--vocab", model.vocab_size, "Tokens in the vocabulary");
  by_hand("--d-model", model.d_model, "Width");
  by_hand("--d-ff", model.d_ff, "Width inside the feed-forward network");
  by_hand("--layers", model.num_layers, "Blocks");
  by_hand("--heads", model.num_heads, "Heads");
}

void add_step(CLI::App& topic, tools::StepAccount& step) {
  add_model(topic, step.model);
  topic.add_option("--context", step.model.context_length, "Tokens of a row")
      ->check(CLI::Range(1, 1 << 24));
  option(topic, "--batch", step.batch_size, "Rows")->check(CLI::Range(1, 1 << 20));
  option(topic, "--mode", step.mode, "forward, forward-backward, step");
  option(topic, "--precision", step.precision, "fp32, bf16 (autocast)");
  option(topic, "--attention", step.attention, "kernel, naive (keeps the matrices of weights)");
  option(topic, "--device", step.device, "cuda, cpu");
}

void add_feed_forward(CLI::App& topic, FeedForward& layer) {
  option(topic, "--d-model", layer.d_model, "D");
  option(topic, "--d-ff", layer.d_ff, "F");
  option(topic, "--matrices", layer.matrices, "3 (SwiGLU) or 2 matrices a layer");
  option(topic, "--element-bytes", layer.element_bytes, "Bytes of an element on the wire");
}

void add_accelerator(CLI::App& topic, Accelerator& accelerator) {
  option(topic, "--flops", accelerator.flops_per_s, "C, FLOP/s of an accelerator");
  option(topic, "--bandwidth", accelerator.bytes_per_s, "W, bytes/s that it sends");
}

void add_model_topics(CLI::App& account, const OutputDirectory& directory) {
  auto step = std::make_shared<tools::StepAccount>();
  add_step(*add_topic(account, "step", "Parameters, FLOPs and memory of a pass",
                      tools::account_step, step, directory),
           *step);
  auto block = std::make_shared<tools::StepAccount>();
  add_step(*add_topic(account, "block", "What one block keeps for backward, by tensor",
                      tools::account_block, block, directory),
           *block);
  auto attention = std::make_shared<tools::AttentionAccount>();
  CLI::App& memory = *add_topic(account, "attention", "Memory of attention by the formula",
                                tools::account_attention, attention, directory);
  option(memory, "--batch", attention->batch_size, "Rows");
  option(memory, "--heads", attention->heads, "Heads");
  option(memory, "--context", attention->contexts, "N, a list")->delimiter(',');
  option(memory, "--head-dim", attention->head_dims, "D, a list")->delimiter(',');
  memory.add_flag("--causal", attention->causal, "With the causal mask");
  option(memory, "--precision", attention->precision, "fp32, bf16");
  option(memory, "--memory-gb", attention->memory_gb, "Of the device, 10^9 bytes");
  auto recompute = std::make_shared<tools::RecomputeAccount>();
  CLI::App& schemes = *add_topic(account, "recompute", "Schemes of recomputation, best group size",
                                 tools::account_recompute, recompute, directory);
  add_step(schemes, recompute->step);
  option(schemes, "--saved-mib", recompute->saved_mib, "Kept by a block; 0: by the formula");
  option(schemes, "--boundary-mib", recompute->boundary_mib, "A block's input; 0: by the formula");
}

void add_parallel_topics(CLI::App& account, const OutputDirectory& directory) {
  auto sharding = std::make_shared<tools::ShardingAccount>();
  CLI::App& state = *add_topic(account, "sharding", "DDP and ZeRO: state and traffic of a rank",
                               tools::account_sharding, sharding, directory);
  add_model(state, sharding->model);
  option(state, "--ranks", sharding->ranks, "A list")->delimiter(',');
  option(state, "--sent", sharding->sent, "fp32, bf16: what travels");
  auto ring = std::make_shared<tools::RingAccount>();
  CLI::App& rings = *add_topic(account, "ring", "All-reduce in rings, and otherwise",
                               tools::account_ring, ring, directory);
  option(rings, "--megabytes", ring->megabytes, "Of the tensor, a list")->delimiter(',');
  option(rings, "--ranks", ring->ranks, "A list")->delimiter(',');
  option(rings, "--gigabytes-per-s", ring->gigabytes_per_s, "Of a link, one direction");
  option(rings, "--latency-us", ring->latency_us, "Of a message besides its bytes");
  auto mesh = std::make_shared<tools::MeshAccount>();
  CLI::App& meshes =
      *add_topic(account, "mesh", "Communication accounting of feed-forward layers (2025)",
                 tools::account_mesh, mesh, directory);
  add_feed_forward(meshes, mesh->layer);
  add_accelerator(meshes, mesh->accelerator);
  option(meshes, "--blocks", mesh->blocks, "Layers");
  option(meshes, "--tokens", mesh->tokens,
         "Of a device, whose activations count; 0: the state alone");
  option(meshes, "--gpu-gb", mesh->gpu_gb, "Memory of a GPU");
  option(meshes, "--limit-gb", mesh->limit_gb, "Memory that a device must stay below");
  option(meshes, "--x", mesh->mesh.data, "FSDP ranks");
  option(meshes, "--y", mesh->mesh.tensor, "TP ranks");
  option(meshes, "--mx", mesh->mesh.data_links, "Links for X");
  option(meshes, "--my", mesh->mesh.tensor_links, "Links for Y");
  auto bounds = std::make_shared<tools::BoundsAccount>();
  CLI::App& limits =
      *add_topic(account, "bounds", "DP, FSDP, TP and FSDP + TP: most devices (2026)",
                 tools::account_bounds, bounds, directory);
  add_feed_forward(limits, bounds->layer);
  add_accelerator(limits, bounds->accelerator);
  option(limits, "--tokens", bounds->tokens, "B, of the whole batch");
  option(limits, "--ranks", bounds->ranks, "Devices for which times are given");
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
  add_model_topics(*account, directory);
  add_parallel_topics(*account, directory);
  add_plan(*account, directory);
  const auto print_all = [directory] {
    for (const Account& one : tools::all_accounts()) print(one, *directory);
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
