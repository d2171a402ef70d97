#include "flashstep/report/bench_norm.h"

#include <algorithm>
#include <map>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/machine.h"
#include "flashstep/ops/cost.h"
#include "flashstep/report/bench_attention_race.h"
#include "flashstep/report/bench_norm_contestants.h"
#include "flashstep/report/gpu_timing.h"

namespace flashstep::report {
namespace {

constexpr int64_t kLeastNormCalls = 3;

void check_norm_options(const BenchNormOptions& options) {
  require(options.rows > 0 && options.calls > 0 && options.turns > 0,
          "[bench norm] expected numbers of rows, calls and turns, got none of one");
  const auto check = [](const char* what, const auto& given, const auto& known) {
    require(!given.empty(), "[bench norm] expected a ", what, ", got none");
    for (const std::string& name : given) {
      require(std::find(known.begin(), known.end(), name) != known.end(), "[bench norm] expected ",
              what, " among ", join(known), ", got \"", name, "\"");
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
  if (!options.contestants.empty()) check("contestant", options.contestants, norm_contestants());
  check("device", std::vector{options.device}, std::vector<std::string>{"cpu", "cuda"});
  require(options.device == "cpu" || !measure::list_gpus().empty(),
          "[bench norm] expected a GPU for device cuda, got none");
}

// A contestant in one case: its runs are one a pass.
struct NormEntry {
  std::unique_ptr<NormContestant> contestant;  // none: it is out
  std::vector<NormRun> runs;
  std::vector<int64_t> calls;  // of a turn, by pass
};

class NormBench {
 public:
  explicit NormBench(const BenchNormOptions& options)
      : options_(options),
        device_(options.device == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0)),
        peer_(options.peer_command) {}

  BenchReport run() {
    const double begin = measure::steady_seconds();
    measure_until_failure(report_, [&] {
      for (const std::string& dtype : options_.dtypes) {
        for (const int64_t width : options_.widths) measure_shape(width, dtype);
      }
    });
    if (report_.failure.empty()) report_.failure = norm_failure(runs_);
    fill_report(measure::steady_seconds() - begin);
    return std::move(report_);
  }

 private:
  void measure_shape(int64_t width, const std::string& dtype) {
    if (options_.progress)
      options_.progress(str("norm of ", options_.rows, " x ", width, ", ", dtype));
    NormCase c{options_.rows, width, dtype, ""};
    const NormInputs inputs = norm_inputs(c, device_);
    std::vector<NormEntry> entries;
    for (const std::string& name :
         options_.contestants.empty() ? norm_contestants() : options_.contestants) {
      entries.push_back(enter(name, c, inputs));
    }
    for (size_t pass = 0; pass < options_.passes.size(); ++pass) {
      for (int64_t turn = 0; turn < options_.turns; ++turn) {
        for (NormEntry& entry : entries) take_turn(entry, pass);
      }
      for (NormEntry& entry : entries) runs_.push_back(std::move(entry.runs[pass]));
    }
  }

  // Holds it against float64, and finds out how often it is called.
  NormEntry enter(const std::string& name, NormCase c, const NormInputs& inputs) {
    NormEntry entry;
    NormErrors errors;
    const std::string trouble = attempt([&] {
      entry.contestant = make_norm_contestant(name, c, inputs, peer_);
      errors = entry.contestant->errors();
    });
    for (const std::string& pass : options_.passes) {
      c.pass = pass;
      NormRun run{name, c, {}, errors.y, errors.gradients, trouble};
      int64_t calls = 0;
      // What goes wrong in one pass leaves the others be.
      if (trouble.empty())
        run.trouble = attempt([&] { calls = calls_of(*entry.contestant, pass); });
      entry.runs.push_back(std::move(run));
      entry.calls.push_back(calls);
    }
    if (!trouble.empty()) entry.contestant.reset();
    return entry;
  }

  int64_t calls_of(NormContestant& contestant, const std::string& pass) const {
    const double seconds = measure::median(contestant.seconds(pass, 1, kLeastNormCalls));
    const double affordable = std::min(options_.cell_seconds / seconds, 1e6);
    const int64_t calls = std::clamp(static_cast<int64_t>(affordable),
                                     std::min(kLeastNormCalls, options_.calls), options_.calls);
    return (calls + options_.turns - 1) / options_.turns;
  }

  void take_turn(NormEntry& entry, size_t pass) {
    NormRun& run = entry.runs[pass];
    if (entry.contestant == nullptr || !run.trouble.empty()) return;
    run.trouble = attempt([&] {
      const auto seconds = entry.contestant->seconds(run.c.pass, 1, entry.calls[pass]);
      run.seconds.insert(run.seconds.end(), seconds.begin(), seconds.end());
    });
    if (!run.trouble.empty()) run.seconds.clear();
  }

  static std::string attempt(const std::function<void()>& work) {
    check_interrupted("interrupted");
    const std::string trouble = trouble_of(work);
    if (!trouble.empty()) measure::release_cached_gpu_memory();
    return trouble;
  }

  void fill_report(double seconds) {
    report_.table = norm_table(runs_, options_.device);
    auto& notes = report_.table.notes;
    const std::string machine = measure::one_line(measure::describe_machine());
    std::string how = str("At most ", options_.calls, " calls of each in ", options_.turns,
                          options_.turns == 1 ? " turn; " : " turns; ", machine);
    if (device_.is_cuda()) {
      if (const auto state = measure::gpu_state()) how += "; " + measure::describe(*state);
    }
    notes.push_back(str(how, "; ", human_seconds(seconds), "."));
    if (report_.signal != 0) notes.emplace_back("Interrupted: the rest was not measured.");
    if (!report_.failure.empty()) notes.push_back("Failed: " + report_.failure + ".");
    for (std::string& sentence : norm_verdict(runs_)) notes.push_back(std::move(sentence));
    report_.pictures = norm_pictures(runs_, options_.device, "flashstep bench norm; " + machine);
  }

  const BenchNormOptions& options_;
  at::Device device_;
  NormPeer peer_;
  std::vector<NormRun> runs_;
  BenchReport report_;
};

}  // namespace

const std::vector<std::string>& norm_contestants() {
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

double norm_bytes(const NormCase& c) {
  const int64_t element = c.dtype == "bf16" ? 2 : 4;
  const double forward = norm_forward_bytes(c.rows, c.width, element);
  return c.pass == "forward" ? forward : forward + norm_backward_bytes(c.rows, c.width, element);
}

BenchReport bench_norm(const BenchNormOptions& options) {
  check_norm_options(options);
  const std::unique_ptr<GpuStream> stream(options.device == "cuda" ? new GpuStream : nullptr);
  return NormBench(options).run();
}

}  // namespace flashstep::report
