#include "flashstep/bench/products.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <sstream>

#include <ATen/ATen.h>

#include "flashstep/amp.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/timing.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/stats.h"
#include "flashstep/products/lt.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

constexpr double kWorthIt = 0.02;    // less may be the machine's noise
constexpr int64_t kMostCalls = 200;  // in one graph

// Two algorithms' turns are compared in the same clocks and temperatures: all take turns.
class ProductBench {
 public:
  explicit ProductBench(const BenchProductsOptions& options) : options_(options) {}

  ProductRun run(const ProductShape& shape) {
    const auto matrix = [](int64_t rows, int64_t columns, at::ScalarType dtype) {
      return at::randn({rows, padded_width(columns)}, at::TensorOptions(at::kCUDA).dtype(dtype))
          .narrow(1, 0, columns);
    };
    a_ = shape.a_by_columns ? matrix(shape.k, shape.m, shape.type).t()
                            : matrix(shape.m, shape.k, shape.type);
    b_ = shape.b_by_columns ? matrix(shape.n, shape.k, shape.type).t()
                            : matrix(shape.k, shape.n, shape.type);
    d_ = matrix(shape.m, shape.n, shape.result);
    c_ = shape.adds ? matrix(shape.m, shape.n, shape.result) : Tensor();
    std::vector<std::unique_ptr<Turn>> turns;
    for (int64_t i = 0; i < internal::lt_algorithms(a_, b_, d_, c_); ++i)
      turns.push_back(turn_of(i));
    std::vector<std::vector<double>> seconds(turns.size());
    for (int64_t turn = 0; turn < options_.turns; ++turn) {
      for (size_t i = 0; i < turns.size(); ++i) {
        if (turns[i])
          seconds[i].push_back(measure::median(turns[i]->work.seconds(turns[i]->replays)));
      }
    }
    ProductRun run{shape, {}};
    for (const auto& list : seconds) run.seconds.push_back(measure::median(list));
    return run;
  }

 private:
  struct Turn {
    GpuGraph work;
    int64_t replays;
  };

  // None for an algorithm that fails or whose bits do not repeat.
  std::unique_ptr<Turn> turn_of(int64_t algorithm) {
    const auto call = [&](int64_t) { internal::lt_product_by(algorithm, a_, b_, d_, c_); };
    try {
      call(0);
      const Tensor first = d_.clone();
      call(1);
      if (!at::equal(first, d_)) return nullptr;
      const double seconds = measure::median(seconds_of_calls(call, a_.device(), 0, 3, 3));
      const auto all = static_cast<int64_t>(options_.turn_seconds / seconds);
      const int64_t calls = std::clamp<int64_t>(all, 3, kMostCalls);
      return std::unique_ptr<Turn>(
          new Turn{GpuGraph(call, calls), std::max<int64_t>(1, all / calls)});
    } catch (const MachineError&) {
      return nullptr;
    }
  }

  const BenchProductsOptions& options_;
  Tensor a_, b_, c_, d_;
};

Record record_of(const ProductShape& s) {
  const auto name = [](at::ScalarType type) { return type == at::kFloat ? "fp32" : "bf16"; };
  const auto layout = [](bool by_columns) { return by_columns ? "columns" : "rows"; };
  return {.key = {{"dtypes", str(name(s.type), " to ", name(s.result))},
                  {"M", s.m},
                  {"N", s.n},
                  {"K", s.k},
                  {"a x b lie by", str(layout(s.a_by_columns), " x ", layout(s.b_by_columns))},
                  {"adds", s.adds ? "c" : ""}},
          .what = str(s.m, " x ", s.n, " x ", s.k)};
}

void add_facts(const ProductRun& run, Record& record) {
  const double fastest = run.seconds[static_cast<size_t>(run.best())];
  const auto number = [&](const char* key) { return record.number(key); };
  record.facts = {{"algorithms", run.seconds.size()},
                  {"first", run.seconds[0]},
                  {"fastest", fastest},
                  {"number", run.best()},
                  {"saves", 100 * run.share_saved()},
                  {"rate", 2 * number("M") * number("N") * number("K") / fastest}};
}

Schema products_schema(const Records&) {
  return {text_key("dtypes"),
          integer_key("M"),
          integer_key("N"),
          integer_key("K"),
          text_key("a x b lie by"),
          text_key("adds"),
          {measure::integer_column("algorithms"), or_word(fact("algorithms"))},
          {measure::number_column("first", "ms", 4), fact("first", 1e3)},
          {measure::number_column("fastest", "ms", 4), fact("fastest", 1e3)},
          {measure::integer_column("number"), fact("number")},
          {measure::number_column("saves", "%", 1), fact("saves")},
          {measure::number_column("rate", "TFLOP/s", 0), fact("rate", 1e-12)}};
}

// Shapes of the steps' products that a table may name.
std::vector<ProductShape> shapes_of(const BenchProductsOptions& options, Run& run) {
  for (const Workload& workload : options.workloads) {
    run.begin(0, 1, "a step of " + describe(workload));
    {
      ModelRun step(workload);
      step.pass();
      // And two micro-batches, which add float32 gradients up.
      if (has_backward(workload) && is_in_bf16(workload.precision)) {
        for (Tensor& parameter : step.model().parameters()) parameter.mutable_grad().reset();
        keep_gradients_in(at::kFloat, step.model().parameters());
        for (int batch = 0; batch < 2; ++batch) step.forward().backward();
      }
    }
    measure::release_cached_gpu_memory();
  }
  auto shapes = internal::lt_shapes();
  std::erase_if(shapes, [](const ProductShape& shape) { return shape.type == at::kHalf; });
  std::sort(shapes.begin(), shapes.end());
  return shapes;
}

void write_table(const std::filesystem::path& file, const internal::LtMachine& machine,
                 const std::vector<ProductRun>& runs) {
  std::vector<std::string> old;
  if (std::filesystem::exists(file)) {
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);) old.push_back(line);
  }
  write_file(file,
             join(merged_table(old, machine.gpu.c_str(), machine.version, runs), "\n") + "\n");
}

}  // namespace

int64_t ProductRun::best() const {
  size_t best = 0;
  for (size_t i = 1; i < seconds.size(); ++i) {
    if (seconds[i] < seconds[best] || std::isnan(seconds[best])) best = i;
  }
  const bool pays = std::isnan(seconds[0]) || seconds[best] < (1 - kWorthIt) * seconds[0];
  return pays && !std::isnan(seconds[best]) ? static_cast<int64_t>(best) : 0;
}

double ProductRun::share_saved() const {
  return 1 - seconds[static_cast<size_t>(best())] / seconds[0];
}

std::string table_line(const char* gpu, int64_t version, const ProductRun& run) {
  const auto type = [](at::ScalarType t) { return t == at::kFloat ? "kFloat32" : "kBFloat16"; };
  const auto layout = [](bool by_columns) { return by_columns ? "kByColumns" : "kByRows"; };
  const ProductShape& s = run.shape;
  return str("{\"", gpu, "\", ", version, ", {", type(s.type), ", ", type(s.result), ", ", s.m,
             ", ", s.n, ", ", s.k, ", ", layout(s.a_by_columns), ", ", layout(s.b_by_columns), ", ",
             s.adds ? "kAdds" : "kAlone", "}, ", run.best(), "},");
}

std::vector<std::string> merged_table(const std::vector<std::string>& old, const char* gpu,
                                      int64_t version, const std::vector<ProductRun>& runs) {
  const auto key = [](const std::string& line) { return line.substr(0, line.find("}, ")); };
  std::map<std::string, std::string> lines;
  for (const std::string& line : old) {
    if (line.starts_with("{")) lines[key(line)] = line;
  }
  for (const ProductRun& run : runs) {
    const std::string line = table_line(gpu, version, run);
    lines.erase(key(line));
    if (run.best() != 0) lines[key(line)] = line;
  }
  std::vector<std::string> merged = {
      "// Generated by flashstep bench products --table: products that another algorithm than the "
      "heuristic's first computes faster."};
  for (auto& [name, line] : lines) merged.push_back(std::move(line));
  return merged;
}

BenchReport bench_products(const BenchProductsOptions& options) {
  require(!measure::list_gpus().empty(), "[bench products] expected a GPU, got none");
  const internal::LtMachine machine = internal::lt_machine();
  Benchmark benchmark;
  benchmark.command = "bench products";
  benchmark.title = str("Matrix products on ", machine.gpu, " by cuBLASLt's algorithms, medians");
  benchmark.device = "cuda";
  benchmark.schema = products_schema;
  benchmark.how_to_read = {note("products")};
  benchmark.how = str("cuBLASLt ", machine.version, "; turns of ", options.turn_seconds * 1e3,
                      " ms in CUDA graphs, ", options.turns, " of each");
  const GpuStream stream;
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    std::vector<ProductRun> runs;
    const auto shapes = shapes_of(options, run);
    for (size_t i = 0; i < shapes.size(); ++i) {
      Record record = record_of(shapes[i]);
      run.begin(i, shapes.size(), record.what);
      record.outcome = attempt([&] {
        runs.push_back(ProductBench(options).run(shapes[i]));
        add_facts(runs.back(), record);
      });
      run.add(std::move(record));
    }
    if (!options.table.empty()) write_table(options.table, machine, runs);
  });
}

}  // namespace flashstep::tools
