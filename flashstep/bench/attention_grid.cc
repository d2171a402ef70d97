// The preset "grid" of `flashstep bench attention`.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/attention.h"
#include "flashstep/bench/attention_cases.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/timing.h"
#include "flashstep/bench/workload.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/cpu_memory.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/stats.h"

namespace flashstep::tools {
namespace {

constexpr int64_t kLongest = 16384;
constexpr int64_t kEndOfDoubling = int64_t{1} << 20;
constexpr int64_t kWarmup = 3;
constexpr double kCpuSeconds = 10;  // of one cell
constexpr uint64_t kGridSeed = 1;

// Seconds of each of so many calls, after some that are not timed.
using SecondsOfCalls = std::function<std::vector<double>(int64_t warmup, int64_t calls)>;

// Of `wanted` calls, after some that warm up; fewer on a CPU.
std::vector<double> seconds_of(const SecondsOfCalls& calls, const at::Device& device,
                               int64_t wanted) {
  const std::vector<double> first = calls(0, 1);
  int64_t passes = wanted;
  if (device.is_cpu()) {
    const auto affordable = static_cast<int64_t>(std::min(kCpuSeconds / 2 / first.at(0), 1e6));
    passes = std::min(wanted, std::max<int64_t>(affordable, 1));
  }
  return passes == 1 ? first : calls(kWarmup - 1, passes);
}

// Of calls that are each waited for.
SecondsOfCalls waiting_for(const std::function<void()>& call, const at::Device& device) {
  return [=](int64_t warmup, int64_t calls) {
    std::vector<double> seconds;
    for (int64_t i = 0; i < warmup + calls; ++i) {
      check_interrupted("interrupted");
      synchronize(device);
      const double start = measure::steady_seconds();
      call();
      synchronize(device);
      if (i >= warmup) seconds.push_back(measure::steady_seconds() - start);
    }
    return seconds;
  };
}

// Bytes of tensors on a device, from here on.
class Scales {
 public:
  explicit Scales(const at::Device& device) : device_(device) {
    if (device.is_cpu()) cpu_.emplace();
    before_ = now();
  }
  double now() const {
    return cpu_ ? static_cast<double>(cpu_->now()) : memory_bytes(device_) - before_;
  }
  double peak() const {
    return cpu_ ? static_cast<double>(cpu_->peak()) : peak_memory_bytes(device_) - before_;
  }
  void reset_peak() { cpu_ ? cpu_->reset_peak() : reset_peak_memory(device_); }

 private:
  at::Device device_;
  std::optional<measure::AllocatedBytes> cpu_;
  double before_ = 0;
};

// One forward and one backward pass, with what they allocate.
AttentionOutcome weigh(Record& record, const AttentionForward& forward,
                       const AttentionInputs& inputs, const at::Device& device) {
  Scales scales(device);
  scales.reset_peak();
  at::Tensor out = forward(inputs.q, inputs.k, inputs.v);
  synchronize(device);
  record.facts["forward peak"] = scales.peak();
  record.facts["before backward"] = scales.now();
  scales.reset_peak();
  const auto found = gradients_of(out, inputs, /*retain_graph=*/true);
  synchronize(device);
  record.facts["backward peak"] = scales.peak();
  const at::Tensor value = out.detach();
  out = at::Tensor();  // the graph goes, the output and the gradients stay
  record.facts["after backward"] = scales.now();
  return {value, found[0], found[1], found[2]};
}

int64_t wrong_elements(const AttentionReference& reference, const AttentionOutcome& outcome) {
  const auto wrong = reference.errors(outcome).wrong;
  return std::accumulate(wrong.begin(), wrong.end(), int64_t{0});
}

void time_tensors(Record& record, const AttentionCandidate& implementation,
                  const AttentionRound& round, int64_t passes) {
  const AttentionForward forward = implementation.function(round);
  const AttentionInputs inputs = leaves_of(round.inputs[0], implementation.ours);
  outcome_of(forward, inputs, true);  // workspaces and handles are made here, not weighed below
  record.facts["wrong"] =
      wrong_elements(*round.reference, weigh(record, forward, inputs, round.device));
  const auto time = [&](const char* pass, const std::function<void()>& call) {
    record.samples[pass] = seconds_of(waiting_for(call, round.device), round.device, passes);
  };
  const auto call = [&] { return forward(inputs.q, inputs.k, inputs.v); };
  time("forward", [&] { call(); });
  const at::Tensor out = call();
  time("backward", [&] { gradients_of(out, inputs, /*retain_graph=*/true); });
}

// A process of its own: its memory is not seen.
void time_process(Record& record, const AttentionCandidate& implementation,
                  const AttentionRound& round, int64_t passes) {
  const auto made = implementation.make(round);
  record.facts["wrong"] = wrong_elements(*round.reference, made->outcome(true));
  for (const char* pass : {"forward", "backward"}) {
    const auto calls = [&](int64_t warmup, int64_t count) {
      return made->turn(pass, warmup, count, 1);
    };
    record.samples[pass] = seconds_of(calls, round.device, passes);
  }
}

}  // namespace

std::vector<Record> measure_grid_case(const AttentionCase& c, const at::Device& device,
                                      const std::vector<AttentionCandidate>& implementations,
                                      int64_t passes) {
  AttentionRound round{.c = c, .device = device, .seed = kGridSeed};
  const Outcome prepared = attempt([&] {
    round.inputs = {random_inputs(c, device, kGridSeed)};
    round.reference.emplace(c, round.inputs[0], round.gradients);
  });
  measure::release_cached_gpu_memory();
  std::vector<Record> records;
  for (const AttentionCandidate& implementation : implementations) {
    Record& record = records.emplace_back();
    record.key = {{"dtype", c.dtype}, {"B", c.batch}, {"D", c.head_dim}, {"N", c.n}};
    record.what = describe(c);
    record.implementation = implementation.name;
    record.ours = implementation.ours;
    record.outcome =
        prepared.measured() ? attempt([&] {
          const auto work = implementation.function ? time_tensors : time_process;
          work(record, implementation, round, passes);
        })
                            : Outcome{prepared.status, "no reference: " + prepared.why};
    if (record.outcome.measured())
      record.samples["both"] = {record.median("forward") + record.median("backward")};
    else
      record.drop_samples();
    measure::release_cached_gpu_memory();
    const char* device_name = device.is_cuda() ? "cuda" : "cpu";
    record.facts["flops"] = pass_flops(c, "both");
    record.facts["limit seconds"] = limit_seconds(c, "both", device_name);
    record.facts["matrix"] = attention_matrix_bytes(size_of(c), element_bytes(c.dtype));
  }
  return records;
}

namespace {

// ---- Tables, sentences, pictures

bool is_formula_without_memory(const Record& r) {
  return r.implementation == "naive" && r.outcome.status == Status::kOutOfMemory;
}

Schema grid_schema() {
  Schema schema = {{measure::text_column("implementation"), implementation()}, text_key("dtype")};
  for (const char* name : {"B", "D", "N"}) schema.push_back(integer_key(name));
  for (const char* pass : {"forward", "backward"}) {
    const std::string name = pass;
    schema =
        schema + Schema{{measure::number_column(name, "ms", 3), or_word(median(name, 1e3))},
                        {measure::number_column(name + " p10", "ms", 3), quantile(name, 0.1, 1e3)},
                        {measure::number_column(name + " p90", "ms", 3), quantile(name, 0.9, 1e3)}};
  }
  const auto beside = [](const Record& r, const Records& all) {
    return times_best_peer(r, all, "both");
  };
  schema =
      schema +
      Schema{
          {measure::number_column("rate", "TFLOP/s", 2), finite(rate("flops", "both", 1e-12))},
          {measure::number_column("of limit", "%", 1), finite(rate("limit seconds", "both", 100))},
          {measure::number_column("x best peer", "", 2), ours(finite(beside))},
          {measure::integer_column("passes"), count("forward")}};
  for (const char* name : {"forward peak", "before backward", "backward peak", "after backward"})
    schema.push_back({measure::number_column(name, "MiB", 1), fact(name, 1 / kMiB)});
  schema.push_back({measure::integer_column("wrong"), fact("wrong")});
  return schema;
}

std::vector<std::string> grid_findings(const Records& records, double memory_bytes) {
  std::vector<std::string> sentences = grid_accounting(records, memory_bytes);
  double wrong = 0;
  for (const Record& r : records) wrong += r.facts.contains("wrong") ? r.number("wrong") : 0;
  const auto ratios = finite_numbers(records, [](const Record& r, const Records& all) {
    return r.ours ? times_best_peer(r, all, "both") : NAN;
  });
  sentences.push_back(str("Wrong elements of all: ", wrong, "."));
  sentences.push_back(ratios.empty()
                          ? "Verdict: no cell with ours and a peer."
                          : str("Verdict: a forward and a backward pass of ours are ",
                                fixed(measure::geometric_mean(ratios), 2),
                                " x the best peer's speed in geometric mean, at least ",
                                fixed(*std::min_element(ratios.begin(), ratios.end()), 2),
                                " x, in ", ratios.size(), " cells."));
  return sentences;
}

std::vector<NamedPicture> grid_pictures(const Records& records) {
  if (records.empty()) return {};
  // That of the longest, where the formula no longer fits.
  const double d = std::ranges::max_element(records, {}, length_of)->number("D");
  const Records drawn = records.where([&](const Record& r) { return r.number("D") == d; });
  const auto name = [](const Record& r) { return r.implementation + " " + r.text("dtype"); };
  const auto kept = [](const Record& r) {
    return r.number("before backward") > 0 ? r.number("before backward") / kMiB : NAN;
  };
  const Record* failed = drawn.find(is_formula_without_memory);
  std::vector<NamedPicture> pictures;
  const auto add = [&](const std::string& stem, const char* title, const char* unit,
                       const ValueOf& value) {
    measure::Plot plot = lines(drawn, name, length_of, value);
    if (plot.series.empty()) return;
    if (failed != nullptr)
      plot.references = {{failed->number("N"), "naive: out of memory", /*vertical=*/true}};
    plot.x = {"seq_len", measure::Scale::kLog2};
    plot.y = {unit, measure::Scale::kLog};
    pictures.push_back(
        named_picture(stem, std::move(plot), title,
                      str("batch ", drawn.all().front().number("B"), ", no heads, head_dim ", d)));
  };
  add("time", "Attention: a forward and a backward pass", "ms", median_of("both", 1e3));
  add(str("memory_d", d), "Attention: memory before backward, beyond the inputs", "MiB", kept);
  return pictures;
}

Benchmark grid_benchmark(const BenchAttentionOptions& options) {
  Benchmark benchmark;
  benchmark.command = "bench attention";
  benchmark.title = str("Attention: grid on ", options.device);
  benchmark.device = options.device;
  benchmark.refusals_are_mistakes = false;
  benchmark.runs_table = [title = benchmark.title](const Records& records) {
    return fill(title, grid_schema(), records);
  };
  benchmark.schema = [](const Records&) { return grid_schema(); };
  benchmark.how_to_read = {note("attention grid")};
  benchmark.findings = [memory = total_memory_bytes(options.device)](const Records& records) {
    return grid_findings(records, memory);
  };
  if (!options.quick) benchmark.pictures = grid_pictures;
  return benchmark;
}

}  // namespace

std::vector<std::string> grid_accounting(const Records& records, double memory_bytes) {
  const Record* failed = records.find(is_formula_without_memory);
  if (failed == nullptr) return {};
  const double needed = failed->number("matrix"), n = failed->number("N");
  std::vector<std::string> sentences = {
      str("The first that does not fit: naive, ", failed->what, ". One (B, N, N) matrix is ",
          failed->number("B"), " x ", std::llround(n), "^2 x ",
          needed / (failed->number("B") * n * n), " bytes = ", fixed(needed / kGiB, 2),
          " GiB; the device has ", fixed(memory_bytes / kGiB, 1), " GiB.")};
  // What a smaller one held, in matrices: its vectors are nothing beside them.
  const Records fitted = records.where([&](const Record& r) {
    return r.implementation == "naive" && r.outcome.measured() &&
           r.text("dtype") == failed->text("dtype") && r.number("before backward") > 0;
  });
  if (fitted.empty()) return sentences;
  const Record& largest = *std::ranges::max_element(fitted, {}, length_of);
  const auto held = [&](const char* name) { return largest.number(name); };
  const auto matrices = [&](const char* name) { return fixed(held(name) / held("matrix"), 2); };
  sentences.push_back(
      str("At N ", std::llround(held("N")), " the forward pass held ", matrices("forward peak"),
          " such matrices at once (scores, scaled scores, weights) and kept ",
          matrices("before backward"), " for backward; backward held ", matrices("backward peak"),
          " (those, and the gradients of weights and scores): at N ", std::llround(n), " that is ",
          fixed(held("backward peak") / held("matrix") * needed / kGiB, 1), " GiB."));
  sentences.push_back(str(
      "Backward gave back ", fixed((held("before backward") - held("after backward")) / kGiB, 2),
      " of the ", fixed(held("before backward") / kGiB, 2), " GiB that were kept at N ",
      std::llround(held("N")), "; ", fixed(held("after backward") / kMiB, 0),
      " MiB of output and gradients stay."));
  return sentences;
}

BenchReport bench_attention_grid(const BenchAttentionOptions& options) {
  const at::Device device = bench_device("bench attention", options.device);
  require(options.filter.passes.empty(),
          "[bench attention] expected no --pass with preset grid, which measures forward and "
          "backward in one, got ",
          options.filter.passes.size(), options.filter.passes.size() == 1 ? " pass" : " passes");
  AttentionFilter filter = options.filter;
  if (filter.dtypes.empty()) filter.dtypes = {"fp32"};
  const auto cases = filtered(attention_preset("grid"), filter).cases;
  require(!cases.empty(), "[bench attention] expected cases of grid, the filter leaves none");
  BenchAttentionOptions chosen = options;
  if (chosen.implementations.empty()) {
    chosen.implementations = {device.is_cuda() ? "cuda" : "cpu", "naive", "sdpa"};
    if (device.is_cuda() && !options.peer_command.empty())
      chosen.implementations.push_back("compiled");
  }
  const auto implementations = chosen_candidates(chosen, device);
  return run_benchmark(grid_benchmark(options), options.progress, [&](Run& run) {
    for (size_t i = 0; i < cases.size(); ++i) {
      run.begin(i, cases.size(), describe(cases[i]));
      run.add(
          measure_grid_case(cases[i], device, implementations, options.quick ? 2 : options.passes));
    }
    const Records& all = run.records();
    const bool has_naive = all.find([](const Record& r) { return r.implementation == "naive"; });
    if (options.quick || cases.back().n != kLongest || !has_naive) return;
    // Doubles N from the longest of the grid until the formula no longer fits.
    AttentionCase c = cases.front().n == kLongest ? cases.front() : cases.back();
    while (c.n < kEndOfDoubling && all.find(is_formula_without_memory) == nullptr) {
      c.n = c.m = 2 * c.n;
      run.begin(0, 1, "longer, until one does not fit: " + describe(c));
      run.add(measure_grid_case(c, device, implementations, /*iterations=*/3));
    }
  });
}

}  // namespace flashstep::tools
