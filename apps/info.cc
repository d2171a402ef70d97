// flashstep info: what this machine is and what it can do at most.
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "apps/commands.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/limits_table.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/table.h"

namespace flashstep::apps {
namespace {

using measure::Limit;
using measure::Limits;
using measure::Machine;

struct InfoOptions {
  bool json = false, measure = false;
  std::string directory;
};

bool is_matmul(const Limit& limit) { return limit.name.starts_with("matmul"); }

void print_text(const Machine& machine, const std::vector<Limits>& limits) {
  const auto line = [](const char* name, const std::string& value) {
    if (!value.empty())
      std::cout << std::string(name).append(12 - std::string(name).size(), ' ') << value << "\n";
  };
  line("processor",
       str(machine.processor, ", ", machine.cores, machine.cores == 1 ? " core" : " cores",
           machine.instructions.empty() ? "" : " (" + machine.instructions + ")"));
  line("memory", human_bytes(machine.memory_bytes));
  line("system", machine.system);
  line("LibTorch", str(machine.libtorch_version, ", ", machine.threads,
                       machine.threads == 1 ? " thread" : " threads"));
  for (const auto& gpu : machine.gpus)
    line("GPU", str(gpu.name, ", ", human_bytes(gpu.memory_bytes), ", sm_", gpu.capability_major,
                    gpu.capability_minor, ", ", gpu.multiprocessors, " multiprocessors"));
  if (!machine.gpus.empty())
    line("CUDA", str(machine.cuda_version, ", driver ", machine.driver_version));
  else if (machine.unused_gpu)
    line("GPU", "present, but this program was built without CUDA (cmake --preset cuda)");
  else
    line("GPU", measure::built_with_cuda() ? "none" : "none (and built without CUDA)");
  std::cout << "\n" << measure::to_text(tools::limits_table(machine, limits));
}

void print_json(const Machine& machine, const std::vector<Limits>& all) {
  nlohmann::ordered_json json = {{"processor", machine.processor},
                                 {"instructions", machine.instructions},
                                 {"cores", machine.cores},
                                 {"threads", machine.threads},
                                 {"memory_bytes", machine.memory_bytes},
                                 {"system", machine.system},
                                 {"libtorch", machine.libtorch_version},
                                 {"cuda", machine.cuda_version},
                                 {"driver", machine.driver_version},
                                 {"built_with_cuda", measure::built_with_cuda()}};
  json["gpus"] = nlohmann::ordered_json::array();
  for (const auto& gpu : machine.gpus)
    json["gpus"].push_back({{"name", gpu.name},
                            {"memory_bytes", gpu.memory_bytes},
                            {"capability", str(gpu.capability_major, ".", gpu.capability_minor)},
                            {"multiprocessors", gpu.multiprocessors}});
  json["limits"] = nlohmann::ordered_json::array();
  for (const Limits& limits : all) {
    for (const Limit& limit : limits.limits) {
      nlohmann::ordered_json entry = {{"device", limit.device},
                                      {"limit", limit.name},
                                      {"unit", is_matmul(limit) ? "FLOP/s" : "B/s"},
                                      {"rate", limit.rate},
                                      {"median_rate", limit.median_rate},
                                      {"data_sheet", nullptr},
                                      {"method", limit.method},
                                      {"measured_at", limits.measured_at},
                                      {"busy", limits.busy}};
      if (const auto sheet = measure::data_sheet_rate(machine, limit)) entry["data_sheet"] = *sheet;
      json["limits"].push_back(std::move(entry));
    }
  }
  using Json = nlohmann::ordered_json;
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void run_info(const InfoOptions& options) {
  make_output_directory(options.directory, {"limits"});
  const Machine machine = measure::describe_machine();
  std::vector<Limits> limits = {measure::machine_limits(machine, "cpu", options.measure)};
  if (!machine.gpus.empty())
    limits.push_back(measure::machine_limits(machine, "cuda", options.measure));
  limits.push_back(measure::machine_limits(machine, "link", options.measure));
  if (!options.directory.empty()) {
    tools::BenchReport files;
    files.table = tools::limits_table(machine, limits);
    tools::save(files, options.directory + "/limits");
  }
  if (options.json)
    print_json(machine, limits);
  else
    print_text(machine, limits);
}

}  // namespace

void add_info(CLI::App& app) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* command =
      app.add_subcommand("info", "Show this machine, LibTorch, the GPUs and the measured limits");
  command->add_flag("--json", options->json, "Print JSON, rates in FLOP/s and bytes/s");
  command->add_flag("--measure", options->measure,
                    "Measure the limits anew (otherwise once per machine, then kept in the cache)");
  command->add_option("--out", options->directory,
                      "Also write the limits (limits.txt, .md, .csv, .json) into this directory");
  command->callback([options] { run_info(*options); });
}

}  // namespace flashstep::apps
