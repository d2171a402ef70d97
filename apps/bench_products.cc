// flashstep bench products: cuBLASLt's algorithms for the products of a step.
#include <memory>
#include <string>

#include "apps/bench.h"
#include "apps/workload_flags.h"
#include "flashstep/bench/products.h"

namespace flashstep::apps {
namespace {

struct ProductsArguments {
  WorkloadFlags workload;
  tools::BenchProductsOptions options;
  int64_t turn_ms = 2;
  std::string directory;
};

void run(ProductsArguments& arguments) {
  tools::WorkloadAxes axes;
  axes.sizes = {"xl"};
  axes.contexts = {512};
  axes.precisions = {"bf16"};
  arguments.workload.apply(axes);
  tools::BenchProductsOptions& options = arguments.options;
  options.workloads = tools::workloads_of(axes);
  options.turn_seconds = static_cast<double>(arguments.turn_ms) * 1e-3;
  run_and_show(tools::bench_products, options, arguments.directory, "products");
}

}  // namespace

void add_bench_products(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "products", "The matrix products of a step by each of cuBLASLt's algorithms");
  auto arguments = std::make_shared<ProductsArguments>();
  arguments->workload.add_options(*command);
  add_number(*command, "--turns", arguments->options.turns, {1, 1000},
             "Of every algorithm, one after the other (5)");
  add_number(*command, "--turn-ms", arguments->turn_ms, {1, 10000},
             "Of a turn (2); from 200 on algorithms are chosen at the GPU's power limit");
  command->add_option("--table", arguments->options.table,
                      "Bring this table (flashstep/products/tuned.inc) up to date");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
