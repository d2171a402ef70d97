#include "flashstep/bench/turns.h"

#include <algorithm>
#include <unistd.h>

#include "flashstep/base/signals.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/stats.h"

namespace flashstep::tools {
namespace {

constexpr int64_t kMostSets = 16;
constexpr double kCacheWarmSeconds = 5e-3;  // a longer call fills the caches by itself
constexpr double kTooSlow = 10;             // budgets that one call may take and still be repeated
constexpr int64_t kGraphCalls = 10, kGraphSamples = 15;
constexpr double kGraphBelowSeconds = 5e-4;  // longer calls hide their launching

struct SamplingPlan {
  int64_t warmup = 0, samples = 0, calls = 1, turns = 1;
};

// From the time of a call to how often it is repeated.
SamplingPlan plan_for(double seconds, const TurnOptions& options) {
  SamplingPlan plan;
  if (options.calls > 0) {
    plan.warmup = options.warmup_calls;
    plan.turns = std::min(options.turns, options.calls);
    plan.samples = (options.calls + plan.turns - 1) / plan.turns;
    return plan;
  }
  const auto count = [](double ratio) { return static_cast<int64_t>(std::min(ratio, 1e6)); };
  plan.calls = 1 + count(options.sample_seconds / seconds);
  const double sample = seconds * static_cast<double>(plan.calls);
  const int64_t least = seconds > kTooSlow * options.cell_seconds
                            ? 1
                            : std::clamp<int64_t>(options.least_samples, 1, options.most_samples);
  const int64_t samples =
      std::clamp(count(options.cell_seconds / sample), least, options.most_samples);
  plan.turns = std::min(options.turns, samples);
  plan.samples = (samples + plan.turns - 1) / plan.turns;
  plan.warmup = seconds < kCacheWarmSeconds ? 1 : 0;
  return plan;
}

// Warms up, and finds out how long a call takes.
SamplingPlan estimate(Implementation& implementation, const std::string& pass,
                      const TurnOptions& options) {
  if (options.calls > 0) return plan_for(0, options);
  double seconds = implementation.turn(pass, 0, 1, 1)[0];
  if (seconds < options.cell_seconds) seconds = measure::median(implementation.turn(pass, 1, 3, 1));
  const double warmup = std::min(options.warmup_seconds / std::max(seconds, 1e-7), 1e4);
  if (warmup >= 1) implementation.turn(pass, static_cast<int64_t>(warmup), 1, 1);
  return plan_for(std::max(seconds, 1e-7), options);
}

// One candidate in one case: none of its implementation where it is out.
struct Entry {
  std::unique_ptr<Implementation> implementation;
  Outcome outcome;
};

Entry make(const Candidate& candidate) {
  check_interrupted("interrupted");
  Entry entry;
  entry.outcome = attempt([&] {
    entry.implementation = candidate.make();
    entry.implementation->check();
  });
  if (!entry.outcome.measured()) {
    entry.implementation.reset();  // frees what it held
    measure::release_cached_gpu_memory();
  }
  return entry;
}

// One implementation in one pass.
struct Part {
  Implementation* implementation;  // null where it is out
  Record& record;
  SamplingPlan plan = {};

  // A gradient may need more memory than there is.
  void attempt(const std::function<void()>& work) {
    if (!record.outcome.measured()) return;
    check_interrupted("interrupted");
    record.outcome = tools::attempt(work);
    if (record.outcome.measured()) return;
    record.drop_samples();
    measure::release_cached_gpu_memory();
  }
};

void time_turns(std::vector<Part>& parts, const std::string& pass, const TurnOptions& options) {
  int64_t turns = 0;
  for (Part& part : parts) {
    part.attempt([&] { part.plan = estimate(*part.implementation, pass, options); });
    turns = std::max(turns, part.plan.turns);
  }
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (Part& part : parts) {
      const SamplingPlan& plan = part.plan;
      if (turn >= plan.turns) continue;
      part.attempt([&] {
        const auto seconds = part.implementation->turn(pass, plan.warmup, plan.samples, plan.calls);
        auto& all = part.record.samples["seconds"];
        all.insert(all.end(), seconds.begin(), seconds.end());
      });
    }
  }
}

void time_graphs(std::vector<Part>& parts, const std::string& pass) {
  for (Part& part : parts) {
    if (!(part.record.median("seconds") < kGraphBelowSeconds)) continue;
    check_interrupted("interrupted");
    std::vector<double> seconds;
    const Outcome outcome =
        attempt([&] { seconds = part.implementation->graph(pass, kGraphSamples, kGraphCalls); });
    if (!outcome.measured()) part.record.facts["no graph"] = outcome.sentence();
    if (!seconds.empty()) part.record.samples["graph"] = seconds;
  }
}

double last_cache_bytes(const at::Device& device) {
  if (device.is_cuda()) return static_cast<double>(measure::list_gpus().at(0).l2_bytes);
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<double>(bytes) : 32e6;  // where the system does not say
}

}  // namespace

std::vector<Record> take_turns(const TurnsCase& c, const std::vector<Candidate>& candidates,
                               const at::Device& device, const TurnOptions& options,
                               const std::function<void()>& prepare) {
  const Outcome prepared = prepare ? attempt(prepare) : Outcome();
  if (!prepared.measured()) measure::release_cached_gpu_memory();
  std::vector<Entry> entries;
  for (const Candidate& candidate : candidates)
    entries.push_back(prepared.measured() ? make(candidate) : Entry{nullptr, prepared});
  std::vector<Record> records(c.passes.size() * candidates.size());
  size_t next = 0;
  for (const std::string& pass : c.passes) {
    std::vector<Part> parts;
    for (size_t i = 0; i < candidates.size(); ++i) {
      Record& record = records[next++];
      record = {.key = c.key,
                .what = c.what + ", " + pass,
                .implementation = candidates[i].name,
                .ours = candidates[i].ours,
                .outcome = entries[i].outcome};
      record.key.emplace_back("pass", pass);
      if (entries[i].implementation) entries[i].implementation->note(pass, record);
      parts.push_back({entries[i].implementation.get(), record});
    }
    time_turns(parts, pass, options);
    if (device.is_cuda()) time_graphs(parts, pass);
  }
  return records;
}

at::Device bench_device(const std::string& command, const std::string& name) {
  require(name == "cpu" || !measure::list_gpus().empty(), "[", command,
          "] expected a GPU for device cuda, got none");
  return name == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

at::ScalarType scalar_type(const std::string& dtype) {
  return dtype == "fp32" ? at::kFloat : dtype == "bf16" ? at::kBFloat16 : at::kHalf;
}

int64_t element_bytes(const std::string& dtype) {
  return static_cast<int64_t>(c10::elementSize(scalar_type(dtype)));
}

std::unique_ptr<GpuStream> stream_of(const at::Device& device) {
  return device.is_cuda() ? std::make_unique<GpuStream>() : nullptr;
}

int64_t sets_beyond_cache(double bytes, const at::Device& device) {
  return std::clamp<int64_t>(
      1 + static_cast<int64_t>(2 * last_cache_bytes(device) / std::max(bytes, 1.0)), 1, kMostSets);
}

}  // namespace flashstep::tools
