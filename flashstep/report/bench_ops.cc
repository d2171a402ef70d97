#include "flashstep/report/bench_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/limits.h"
#include "flashstep/report/figures.h"
#include "flashstep/report/operators.h"

namespace flashstep::report {
namespace {

// Twice what the dtype costs PyTorch, and some roundings where that is nothing.
std::string fault_of(const Record& ours, const Record* eager) {
  const double rounding = ours.text("dtype") == "bf16" ? 1.0 / 128 : 1e-5;
  for (const char* error : {"error", "gradient error"}) {
    const double allowed = rounding + 2 * (eager != nullptr ? eager->number(error) : 0);
    if (ours.facts.contains(error) && eager != nullptr && !(ours.number(error) <= allowed))
      return str("expected ", error, " of at most ", allowed, ", got ", ours.number(error));
  }
  return "";
}

std::vector<Record> measure_operator(const BenchOpsOptions& options, const Operator& op,
                                     const std::string& dtype, PythonPeer& peer) {
  const at::Device device =
      options.device == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
  const OpSize size = {options.rows,  options.width, (options.width * 8 / 3 + 63) / 64 * 64,
                       options.vocab, dtype,         device};
  OpInputs inputs;
  const auto in_python = [&] {
    return python_implementation(peer, {{"op", op.name},
                                        {"rows", size.rows},
                                        {"width", size.width},
                                        {"d_ff", size.d_ff},
                                        {"vocab", size.vocab},
                                        {"dtype", dtype},
                                        {"device", options.device}});
  };
  std::vector<Candidate> candidates = {
      {"flashstep", true, [&] { return tensor_implementation(op.ours, op.formula, inputs); }},
      {"eager", false, [&] { return tensor_implementation(op.eager, op.formula, inputs); }},
      {"compiled", false, in_python}};
  std::erase_if(candidates, [&](const Candidate& candidate) {
    const auto& names = options.implementations;
    return !names.empty() && std::find(names.begin(), names.end(), candidate.name) == names.end();
  });
  std::vector<Record> records = take_turns(
      {{{"operator", op.name}, {"rows", size.rows}, {"width", size.width}, {"dtype", dtype}},
       str(op.name, ", ", size.rows, " x ", size.width, ", ", dtype),
       op.passes},
      candidates, device, {.cell_seconds = options.cell_seconds, .turns = options.turns},
      [&] { inputs = op.inputs(size); });
  for (Record& record : records) {
    const Work work = op.work(size, record.text("pass") == kBothPasses);
    record.facts["bytes"] = work.bytes;
    record.facts["limit seconds"] =
        std::max(work.bytes / measure::memory_limit_bytes_per_s(options.device),
                 work.flops / measure::matmul_limit_flops(options.device, dtype));
  }
  const Records all(records);
  for (Record& record : records) {
    if (record.ours && record.outcome.measured())
      record.fault = fault_of(record, all.find(record, "eager"));
  }
  return records;
}

std::vector<NamedPicture> ops_pictures(const Records& records, const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  for (const auto& [name, members] :
       records.grouped([](const Record& r) { return r.text("dtype") + "_" + r.text("pass"); })) {
    measure::Plot plot = bars(
        members, [](const Record& r) { return r.text("operator"); }, implementation_of,
        [](const Record& r) { return 100 * r.number("limit seconds") / r.median("seconds"); });
    plot.title = "Operators: share of the machine's limit";
    plot.subtitle = members.all().front().text("pass") + ", " + members.all().front().text("dtype");
    plot.footnote = footnote;
    plot.y.label = "%";
    pictures.push_back({name, std::move(plot)});
  }
  return pictures;
}

}  // namespace

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const Operator& op : operators()) names.push_back(op.name);
  return names;
}

BenchReport bench_ops(const BenchOpsOptions& options) {
  require(options.rows > 0 && options.rows % 256 == 0 && options.width > 0 &&
              options.width % 64 == 0 && options.vocab > 0,
          "[bench ops] expected rows in 256s, a width in 64s and a vocabulary, got ", options.rows,
          ", ", options.width, " and ", options.vocab);
  require(options.device == "cpu" || !measure::list_gpus().empty(),
          "[bench ops] expected a GPU for device cuda, got none");
  std::vector<Operator> chosen;
  for (const Operator& op : operators()) {
    const auto& names = options.ops;
    if (names.empty() || std::find(names.begin(), names.end(), op.name) != names.end())
      chosen.push_back(op);
  }
  Benchmark benchmark;
  benchmark.command = "bench ops";
  benchmark.title = str("Operators on the ", options.device == "cuda" ? "GPU" : "CPU");
  benchmark.device = options.device;
  benchmark.schema = [](const Records&) {
    return Schema{
               text_key("operator"), integer_key("rows"),
               integer_key("width"), text_key("dtype"),
               text_key("pass"),     {measure::text_column("implementation"), implementation()}} +
           op_schema("eager");
  };
  benchmark.how_to_read = {note("ops")};
  benchmark.how = str("Vocabulary ", options.vocab, "; ", options.turns, " turns of each");
  benchmark.findings = [](const Records& r) {
    return speed_beside_others(r, "flashstep", "seconds");
  };
  benchmark.pictures = ops_pictures;
  const std::unique_ptr<GpuStream> stream(options.device == "cuda" ? new GpuStream : nullptr);
  PythonPeer peer(options.peer_command);
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    size_t number = 0;
    for (const std::string& dtype : options.dtypes) {
      for (const Operator& op : chosen) {
        run.begin(number++, options.dtypes.size() * chosen.size(), op.name + ", " + dtype);
        run.add(measure_operator(options, op, dtype, peer));
      }
    }
  });
}

}  // namespace flashstep::report
