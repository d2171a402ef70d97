// flashstep bench allreduce: sums over ranks of this machine, which it starts itself.
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/signals.h"
#include "flashstep/bench/allreduce.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::apps {
namespace {

struct AllreduceArguments {
  tools::BenchAllreduceOptions options;
  std::string preset = "2026", dtype = "fp32", directory;
  std::vector<std::string> backends, devices;
  std::vector<double> megabytes;
  std::vector<int64_t> ranks;
};

// The preset with what was given in place of its lists.
tools::AllreducePlan plan_of(const AllreduceArguments& arguments) {
  tools::AllreducePlan plan = tools::allreduce_preset(arguments.preset);
  if (!arguments.backends.empty() || !arguments.devices.empty()) {
    plan.transports = tools::transports_of(arguments.backends, arguments.devices);
  } else if (measure::list_gpus().empty()) {
    plan.transports = tools::transports_of({"gloo"}, {"cpu"});
  }
  take_if_given(arguments.megabytes, plan.megabytes);
  take_if_given(arguments.ranks, plan.ranks);
  plan.dtype = arguments.dtype;
  return plan;
}

void run(AllreduceArguments& arguments) {
  if (const auto task = tools::rank_task())
    return tools::measure_allreduce(tools::task_from_json(*task), tools::hand_over_record);
  arguments.options.plan = plan_of(arguments);
  make_output_directory(arguments.directory);
  const SignalGuard signals;
  arguments.options.progress = print_progress;
  show(tools::bench_allreduce(arguments.options), arguments.directory, "allreduce");
}

}  // namespace

void add_bench_allreduce(CLI::App& bench) {
  auto* command = bench.add_subcommand("allreduce", "Sums over ranks, which it starts: NCCL, Gloo");
  auto arguments = std::make_shared<AllreduceArguments>();
  command->add_option("--preset", arguments->preset, "The course's year: 2024, 2025, 2026")
      ->check(CLI::IsMember(tools::allreduce_presets()))
      ->capture_default_str();
  command
      ->add_option("--megabytes", arguments->megabytes,
                   "Sizes in 10^6 bytes, such as 1,10,100,1000; the preset's")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command->add_option("--ranks", arguments->ranks, "Numbers of ranks, such as 2,4,6; the preset's")
      ->delimiter(',')
      ->check(CLI::Range(2, 1024));
  add_names(*command, "--backend", arguments->backends, {"nccl", "gloo"},
            "nccl, gloo; the preset's");
  add_names(*command, "--device", arguments->devices, {"cuda", "cpu"},
            "cuda, cpu; the preset's, or cpu where there is no GPU");
  command->add_option("--dtype", arguments->dtype, "fp32, bf16, fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command
      ->add_option("--seconds", arguments->options.task.cell_seconds,
                   "For the timed calls of one implementation and case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--quick", arguments->options.task.quick,
                    "One short turn a cell: only to see that all runs");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
