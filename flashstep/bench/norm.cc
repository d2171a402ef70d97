#include "flashstep/bench/norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/bench/ops.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"
#include "flashstep/measure/limits.h"

namespace flashstep::tools {
namespace {

constexpr int64_t kLeastNormCalls = 3;

// Of x, weight and bias.
at::Tensor layer_norm_of(const std::vector<at::Tensor>& in) {
  return at::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], kOpEpsilon);
}

std::string fault_of(const Record& r) {
  const double most = norm_tolerance(r.text("dtype"));
  const bool both = r.text("pass") == kBothPasses;
  if (r.number("error") <= most && (!both || r.number("gradient error") <= most)) return "";
  return str("expected errors of at most ", most, ", got ", r.number("error"),
             both ? str(" and ", r.number("gradient error")) : "");
}

std::vector<Record> measure_norm(const BenchNormOptions& options, int64_t width,
                                 const std::string& dtype, PythonPeer& peer) {
  const Operator& rms_norm = operators().front();
  const OpSize size = {.rows = options.rows,
                       .width = width,
                       .dtype = dtype,
                       .device = bench_device("bench norm", options.device)};
  OpInputs rms, layer;
  const auto make = [&](const std::string& name) {
    if (name == "compiled") return python_implementation(peer, size.request(rms_norm.name));
    if (name == "layer_norm") return tensor_implementation(layer_norm_of, layer_norm_of, layer);
    const TensorOp& op = name == "naive"      ? rms_norm.formula
                         : name == "libtorch" ? rms_norm.eager
                                              : rms_norm.ours;
    return tensor_implementation(op, rms_norm.formula, rms);
  };
  std::vector<Candidate> candidates;
  for (const std::string& name :
       options.implementations.empty() ? norm_implementations() : options.implementations)
    candidates.push_back({name, name == "flashstep", [&make, name] { return make(name); }});
  const TurnOptions turn_options = {.cell_seconds = options.cell_seconds,
                                    .warmup_seconds = 0,
                                    .turns = options.turns,
                                    .least_samples = kLeastNormCalls,
                                    .most_samples = options.calls,
                                    .sample_seconds = 0};
  const TurnsCase c = {{{"rows", options.rows}, {"width", width}, {"dtype", dtype}},
                       str(options.rows, " x ", width, ", ", dtype),
                       options.passes};
  std::vector<Record> records = take_turns(c, candidates, size.device, turn_options, [&] {
    rms = rms_norm.inputs(size);
    layer = rms;
    layer.tensors.push_back(size.draw({width}));
  });
  add_work(records, rms_norm, size);
  for (Record& record : records) {
    if (record.ours && record.outcome.measured()) record.fault = fault_of(record);
  }
  return records;
}

// GB/s by width, a picture a dtype and pass.
std::vector<NamedPicture> norm_pictures(const Records& records, const std::string& device) {
  const double limit = measure::memory_limit_bytes_per_s(device) / 1e9;
  const auto rate = [](const Record& r) { return r.number("bytes") / r.median("seconds") / 1e9; };
  const auto width = [](const Record& r) { return str("width ", std::llround(r.number("width"))); };
  const auto label = [&](const Record& r) {
    const std::string word = r.outcome.status == Status::kOutOfMemory ? "OOM" : "-";
    return r.has("seconds") ? fixed(rate(r), 0) : word;
  };
  return op_pictures(records, [&](const std::string& name, const Records& members) {
    measure::Plot plot = bars(members, width, implementation_of, rate, label);
    plot.y.label = "GB/s";
    plot.references.push_back({limit, "memory's limit"});
    const Record& first = members.all().front();
    return named_picture(
        name, std::move(plot),
        str("Norms, ", first.text("pass"), ": the least traffic over the time"),
        str(std::llround(first.number("rows")), " rows, ", first.text("dtype"), "; medians"));
  });
}

}  // namespace

std::vector<std::string> norm_implementations() {
  return {"flashstep", "naive", "libtorch", "compiled", "layer_norm"};
}

double norm_tolerance(const std::string& dtype) {
  // Values of up to six root mean squares: half a unit of 8 bits is 2^-9 of them. fp32 sums tens of
  // thousands of terms besides.
  return dtype == "bf16" ? 6.0 / 256 : 1e-4;
}

Benchmark norm_benchmark(const BenchNormOptions& options) {
  Benchmark benchmark =
      op_benchmark("norm", options.device,
                   {integer_key("rows"), integer_key("width"), text_key("dtype")}, "naive");
  benchmark.title = str("Norms of rows on the ", options.device == "cuda" ? "GPU" : "CPU");
  benchmark.how = str("At most ", options.calls, " calls of each in ", options.turns,
                      options.turns == 1 ? " turn" : " turns");
  benchmark.pictures = [device = options.device](const Records& records) {
    return norm_pictures(records, device);
  };
  return benchmark;
}

BenchReport bench_norm(const BenchNormOptions& options) {
  for (const int64_t width : options.widths) {
    require(std::count(options.widths.begin(), options.widths.end(), width) == 1,
            "[bench norm] expected each width once, got ", width, " more often");
  }
  const auto stream = stream_of(bench_device("bench norm", options.device));
  PythonPeer peer(options.peer_command);
  return run_benchmark(norm_benchmark(options), options.progress, [&](Run& run) {
    size_t number = 0;
    const size_t count = options.dtypes.size() * options.widths.size();
    for (const std::string& dtype : options.dtypes) {
      for (const int64_t width : options.widths) {
        run.begin(number++, count, str("norm of ", options.rows, " x ", width, ", ", dtype));
        run.add(measure_norm(options, width, dtype, peer));
      }
    }
  });
}

}  // namespace flashstep::tools
