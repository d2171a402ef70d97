#include "flashstep/bench/norm.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/bench/ops.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/limits.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cost.h"

namespace flashstep::tools {
namespace {

constexpr double kNormEpsilon = 1e-5;
constexpr int64_t kLeastNormCalls = 3;

void check_norm_options(const BenchNormOptions& options) {
  require(options.rows > 0 && options.calls > 0 && options.turns > 0,
          "[bench norm] expected numbers of rows, calls and turns, got none of one");
  const auto check = [](const char* what, const auto& given, const auto& known) {
    require(!given.empty(), "[bench norm] expected a ", what, ", got none");
    for (const std::string& name : given) {
      require(contains(known, name), "[bench norm] expected ", what, " among ", join(known),
              ", got \"", name, "\"");
    }
  };
  require(!options.widths.empty() &&
              *std::min_element(options.widths.begin(), options.widths.end()) > 0,
          "[bench norm] expected widths from 1 on, got none or less");
  for (const int64_t width : options.widths) {
    require(std::count(options.widths.begin(), options.widths.end(), width) == 1,
            "[bench norm] expected each width once, got ", width, " more often");
  }
  check("dtype", options.dtypes, std::vector<std::string>{"fp32", "bf16"});
  check("pass", options.passes, BenchNormOptions().passes);
  if (!options.implementations.empty())
    check("implementation", options.implementations, norm_implementations());
  check("device", std::vector{options.device}, std::vector<std::string>{"cpu", "cuda"});
  require(options.device == "cpu" || !measure::list_gpus().empty(),
          "[bench norm] expected a GPU for device cuda, got none");
}

// Of x, weight and, LayerNorm's, bias.
at::Tensor rms_formula(const std::vector<at::Tensor>& in) {
  return rms_norm_reference(in[0], in[1], kNormEpsilon);
}
at::Tensor layer_norm_of(const std::vector<at::Tensor>& in) {
  return at::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], kNormEpsilon);
}
TensorOp norm_op(const std::string& name) {
  if (name == "naive") return rms_formula;
  if (name == "libtorch") {
    return [](const std::vector<at::Tensor>& in) {
      return at::rms_norm(in[0], {in[0].size(-1)}, in[1], kNormEpsilon);
    };
  }
  return [](const std::vector<at::Tensor>& in) { return rms_norm(in[0], in[1], kNormEpsilon); };
}

std::vector<Record> measure_norm(const BenchNormOptions& options, int64_t width,
                                 const std::string& dtype, PythonPeer& peer) {
  const at::Device device =
      options.device == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
  OpInputs rms, layer;
  const auto prepare = [&] {
    rms = {{random_leaf({options.rows, width}, dtype, device),
            random_leaf({width}, dtype, device, 0.1, 1)},
           random_leaf({options.rows, width}, dtype, device).detach(),
           /*row_tensors=*/1};
    layer = rms;
    layer.tensors.push_back(random_leaf({width}, dtype, device));
  };
  std::vector<Candidate> candidates;
  for (const std::string& name :
       options.implementations.empty() ? norm_implementations() : options.implementations) {
    candidates.push_back({name, name == "flashstep", [&, name] {
                            if (name == "compiled")
                              return python_implementation(peer, {{"op", "rms_norm"},
                                                                  {"rows", options.rows},
                                                                  {"width", width},
                                                                  {"dtype", dtype},
                                                                  {"device", options.device}});
                            return name == "layer_norm"
                                       ? tensor_implementation(layer_norm_of, layer_norm_of, layer)
                                       : tensor_implementation(norm_op(name), rms_formula, rms);
                          }});
  }
  const TurnOptions turn_options = {.cell_seconds = options.cell_seconds,
                                    .warmup_seconds = 0,
                                    .turns = options.turns,
                                    .least_samples = kLeastNormCalls,
                                    .most_samples = options.calls,
                                    .sample_seconds = 0};
  const TurnsCase c = {{{"rows", options.rows}, {"width", width}, {"dtype", dtype}},
                       str(options.rows, " x ", width, ", ", dtype),
                       options.passes};
  std::vector<Record> records = take_turns(c, candidates, device, turn_options, prepare);
  const double limit = measure::memory_limit_bytes_per_s(options.device);
  const int64_t element = dtype == "bf16" ? 2 : 4;
  for (Record& record : records) {
    double bytes = norm_forward_bytes(options.rows, width, element);
    if (record.text("pass") == kBothPasses)
      bytes += norm_backward_bytes(options.rows, width, element);
    record.facts["bytes"] = bytes;
    record.facts["limit seconds"] = bytes / limit;
    const double most = norm_tolerance(dtype), error = record.number("error"),
                 gradient_error = record.number("gradient error");
    const bool both = record.text("pass") == kBothPasses;
    if (record.ours && record.outcome.measured() &&
        !(error <= most && (!both || gradient_error <= most))) {
      record.fault = str("expected errors of at most ", most, ", got ", error,
                         both ? str(" and ", gradient_error) : "");
    }
  }
  return records;
}

// GB/s by width, a picture a dtype and pass.
std::vector<NamedPicture> norm_pictures(const Records& records, const std::string& device,
                                        const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  const double limit = measure::memory_limit_bytes_per_s(device) / 1e9;
  const auto rate = [](const Record& r) { return r.number("bytes") / r.median("seconds") / 1e9; };
  for (const auto& [name, members] :
       records.grouped([](const Record& r) { return r.text("dtype") + "_" + r.text("pass"); })) {
    measure::Plot plot = bars(
        members,
        [](const Record& r) { return "width " + std::to_string(std::llround(r.number("width"))); },
        implementation_of, rate,
        [&](const Record& r) {
          const std::string word = r.outcome.status == Status::kOutOfMemory ? "OOM" : "-";
          return r.has("seconds") ? fixed(rate(r), 0) : word;
        });
    const Record& first = members.all().front();
    plot.title = str("Norms, ", first.text("pass"), ": the least traffic over the time");
    plot.subtitle =
        str(std::llround(first.number("rows")), " rows, ", first.text("dtype"), "; medians");
    plot.footnote = footnote;
    plot.y.label = "GB/s";
    plot.references.push_back({limit, "memory's limit"});
    pictures.push_back({name, std::move(plot)});
  }
  return pictures;
}

}  // namespace

const std::vector<std::string>& norm_implementations() {
  static const std::vector<std::string> all = {"flashstep", "naive", "libtorch", "compiled",
                                               "layer_norm"};
  return all;
}

BenchNormOptions norm_preset(const std::string& name) {
  BenchNormOptions options;
  if (name == "2024") return options;
  require(name == "cpu" || name == "quick",
          "[bench norm] expected preset 2024, cpu or quick, got \"", name, "\"");
  options.rows = name == "cpu" ? 10'000 : 4096;
  if (name == "cpu") return options;
  options.widths = {1024, 4096};
  options.cell_seconds = 0.2;
  return options;
}

double norm_tolerance(const std::string& dtype) {
  // Values of up to six root mean squares: half a unit of 8 bits is 2^-9 of them. fp32 sums tens of
  // thousands of terms besides.
  return dtype == "bf16" ? 6.0 / 256 : 1e-4;
}

Benchmark norm_benchmark(const BenchNormOptions& options) {
  Benchmark benchmark;
  benchmark.command = "bench norm";
  benchmark.title = str("Norms of rows on the ", options.device == "cuda" ? "GPU" : "CPU");
  benchmark.device = options.device;
  benchmark.schema = [](const Records&) {
    return Schema{integer_key("rows"),
                  integer_key("width"),
                  text_key("dtype"),
                  text_key("pass"),
                  {measure::text_column("implementation"), implementation()}} +
           op_schema("naive");
  };
  benchmark.how_to_read = {note("norm")};
  benchmark.how = str("At most ", options.calls, " calls of each in ", options.turns,
                      options.turns == 1 ? " turn" : " turns");
  benchmark.findings = [](const Records& records) {
    return speed_beside_others(records, "flashstep", "seconds");
  };
  benchmark.pictures = [device = options.device](const Records& records, const std::string& note) {
    return norm_pictures(records, device, note);
  };
  return benchmark;
}

BenchReport bench_norm(const BenchNormOptions& options) {
  check_norm_options(options);
  const std::unique_ptr<GpuStream> stream(options.device == "cuda" ? new GpuStream : nullptr);
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
