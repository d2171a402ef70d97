// flashstep bench: a table of benchmarks. Each prints one table, with peers in the same run and a
// verdict below.
#include "apps/bench.h"

#include <iostream>

#include "apps/commands.h"
#include "flashstep/base/files.h"

namespace flashstep::apps {
namespace {

using AddBenchmark = void (*)(CLI::App&);
constexpr AddBenchmark kBenchmarks[] = {
    add_bench_allreduce,
    add_bench_attention,
    add_bench_step,
    add_bench_tokenizer,
};

}  // namespace

void BenchOutput::add_option(CLI::App& command) {
  command.add_option("--out", stem, "Also write the table to STEM.md and STEM.json");
}

void BenchOutput::show(const measure::Table& table) const {
  std::cout << measure::to_text(table);
  if (stem.empty()) return;
  write_file(stem + ".md", measure::to_markdown(table));
  write_file(stem + ".json", measure::to_json(table));
}

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Benchmarks, with peers in the same run");
  bench->require_subcommand(1);
  for (const AddBenchmark add : kBenchmarks) add(*bench);
}

}  // namespace flashstep::apps
