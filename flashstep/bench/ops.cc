#include "flashstep/bench/ops.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

// Twice what the dtype costs PyTorch, and some roundings where that is nothing; any number where
// nobody knows what it costs.
std::string fault_of(const Record& ours, const Record& eager) {
  const double rounding = ours.text("dtype") == "bf16" ? 1.0 / 128 : 1e-5;
  for (const char* error : {"error", "gradient error"}) {
    const double allowed =
        eager.facts.contains(error) ? rounding + 2 * eager.number(error) : INFINITY;
    if (ours.facts.contains(error) && !(ours.number(error) <= allowed))
      return str("expected ", error, " of at most ", allowed, ", got ", ours.number(error));
  }
  return "";
}

std::vector<NamedPicture> ops_pictures(const Records& records) {
  const auto share = [](const Record& r) {
    return 100 * r.number("limit seconds") / r.median("seconds");
  };
  return op_pictures(records, [&](const std::string& name, const Records& members) {
    measure::Plot plot = bars(members, text_of("operator"), implementation_of, share);
    plot.y.label = "%";
    const Record& first = members.all().front();
    return named_picture(name, std::move(plot), "Operators: share of the machine's limit",
                         first.text("pass") + ", " + first.text("dtype"));
  });
}

}  // namespace

std::vector<Record> measure_operator(const BenchOpsOptions& options, const Operator& op,
                                     const std::string& dtype, PythonPeer& peer) {
  const OpSize size = {options.rows,  options.width, (options.width * 8 / 3 + 63) / 64 * 64,
                       options.vocab, dtype,         bench_device("bench ops", options.device)};
  OpInputs inputs;
  std::unique_ptr<Implementation> eager;  // that is not timed: ours is held against it all the same
  std::vector<Candidate> candidates = {
      {"flashstep", true, [&] { return tensor_implementation(op.ours, op.formula, inputs); }},
      {"eager", false, [&] { return tensor_implementation(op.eager, op.formula, inputs); }},
      {"compiled", false, [&] { return python_implementation(peer, size.request(op.name)); }}};
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return !is_wanted(options.implementations, candidate.name);
  });
  std::vector<Record> records = take_turns(
      {{{"operator", op.name}, {"rows", size.rows}, {"width", size.width}, {"dtype", dtype}},
       str(op.name, ", ", size.rows, " x ", size.width, ", ", dtype),
       op.passes},
      candidates, size.device, {.cell_seconds = options.cell_seconds, .turns = options.turns}, [&] {
        inputs = op.inputs(size);
        if (is_wanted(options.implementations, "eager")) return;
        auto made = tensor_implementation(op.eager, op.formula, inputs);
        if (attempt([&] { made->check(); }).measured()) eager = std::move(made);
      });
  add_work(records, op, size);
  const Records all(records);
  for (Record& record : records) {
    if (!record.ours || !record.outcome.measured()) continue;
    const Record* timed = all.find(record, "eager");
    Record untimed;
    if (eager) eager->note(record.text("pass"), untimed);
    record.fault = fault_of(record, timed != nullptr ? *timed : untimed);
  }
  return records;
}

BenchReport bench_ops(const BenchOpsOptions& options) {
  require(options.rows > 0 && options.rows % 256 == 0 && options.width > 0 &&
              options.width % 64 == 0 && options.vocab > 0,
          "[bench ops] expected rows in 256s, a width in 64s and a vocabulary, got ", options.rows,
          ", ", options.width, " and ", options.vocab);
  const auto stream = stream_of(bench_device("bench ops", options.device));
  std::vector<Operator> chosen = operators();
  std::erase_if(chosen, [&](const Operator& op) { return !is_wanted(options.ops, op.name); });
  Benchmark benchmark = op_benchmark(
      "ops", options.device,
      {text_key("operator"), integer_key("rows"), integer_key("width"), text_key("dtype")},
      "eager");
  benchmark.title = str("Operators on the ", options.device == "cuda" ? "GPU" : "CPU");
  benchmark.how = str("Vocabulary ", options.vocab, "; ", options.turns, " turns of each");
  benchmark.pictures = ops_pictures;
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

}  // namespace flashstep::tools
