#include "flashstep/report/bench_attention_race.h"

#include <algorithm>
#include <cmath>
#include <unistd.h>

#include "flashstep/attention.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/case_memory.h"
#include "flashstep/report/gpu_timing.h"

namespace flashstep::report {
namespace {

constexpr int64_t kMostSets = 16;
constexpr uint64_t kRaceSeed = 1;
constexpr double kCacheWarmSeconds = 5e-3;  // a longer call fills the caches by itself
constexpr double kTooSlow = 10;             // budgets that one call may take and still be repeated
constexpr int64_t kGraphCalls = 10, kGraphSamples = 15;

double last_cache_bytes(const at::Device& device) {
  if (device.is_cuda()) return static_cast<double>(gpu_l2_bytes());
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<double>(bytes) : 32e6;  // where the system does not say
}

void stop_if_asked() {
  if (const int signal = SignalGuard::received(); signal != 0)
    throw Interrupted(signal, "interrupted");
}

struct Entry {
  const AttentionContestant* contestant;
  std::unique_ptr<AttentionRival> rival;  // none: it is out
  std::string trouble;
  AttentionErrors errors;
  bool checked = false;
};

// Frees what a failed contestant held.
void put_out(Entry& entry, std::string trouble) {
  entry.trouble = std::move(trouble);
  entry.rival.reset();
  measure::release_cached_gpu_memory();
}

void enter(Entry& entry, const AttentionRound& round, const AttentionReference& reference,
           bool gradients) {
  std::string trouble = trouble_of([&] {
    entry.rival = entry.contestant->enter(round);
    entry.errors = reference.errors(entry.rival->outcome(gradients));
  });
  if (!trouble.empty()) return put_out(entry, std::move(trouble));
  entry.checked = true;
}

// The errors of what a pass computes.
void note_errors(AttentionRun& run, AttentionPass pass, const AttentionErrors& errors) {
  run.wrong = 0;
  for (size_t i = 0; i < errors.wrong.size(); ++i) {
    if (i == 0 ? pass == AttentionPass::kBackward : pass == AttentionPass::kForward) continue;
    *run.wrong += errors.wrong[i];
    run.worst = std::fmax(run.worst, errors.worst[i]);
  }
}

struct SamplingPlan {
  int64_t warmup = 0, samples = 0, calls = 1, turns = 1;
};

// From the time of a call to how often it is repeated.
SamplingPlan plan_for(double seconds, const RaceOptions& options) {
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
  const int64_t least =
      seconds > kTooSlow * options.cell_seconds ? 1 : std::max<int64_t>(options.least_samples, 1);
  const int64_t samples =
      std::clamp(count(options.cell_seconds / sample), least, options.most_samples);
  plan.turns = std::min(options.turns, samples);
  plan.samples = (samples + plan.turns - 1) / plan.turns;
  plan.warmup = seconds < kCacheWarmSeconds ? 1 : 0;
  return plan;
}

// Warms up, and finds out how long a call takes.
SamplingPlan estimate(AttentionRival& rival, AttentionPass pass, const RaceOptions& options) {
  if (options.calls > 0) return plan_for(0, options);
  double seconds = rival.turn(pass, 0, 1, 1)[0];
  if (seconds < options.cell_seconds) seconds = measure::median(rival.turn(pass, 1, 3, 1));
  const double warmup = std::min(options.warmup_seconds / std::max(seconds, 1e-7), 1e4);
  if (warmup >= 1) rival.turn(pass, static_cast<int64_t>(warmup), 1, 1);
  return plan_for(std::max(seconds, 1e-7), options);
}

void time_pass(AttentionPass pass, std::vector<Entry>& entries, std::vector<AttentionRun>& runs,
               const RaceOptions& options) {
  std::vector<SamplingPlan> plans(entries.size());
  int64_t turns = 0;
  // What goes wrong in one pass leaves the others be: a gradient may need more memory than there
  // is.
  const auto attempt = [&](size_t i, const std::function<void()>& work) {
    if (!entries[i].rival || !runs[i].trouble.empty()) return;
    stop_if_asked();
    runs[i].trouble = trouble_of(work);
    if (runs[i].trouble.empty()) return;
    runs[i].seconds.clear();
    plans[i].turns = 0;
    measure::release_cached_gpu_memory();
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    attempt(i, [&] { plans[i] = estimate(*entries[i].rival, pass, options); });
    turns = std::max(turns, plans[i].turns);
  }
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (turn >= plans[i].turns) continue;
      attempt(i, [&] {
        const SamplingPlan& plan = plans[i];
        const auto seconds = entries[i].rival->turn(pass, plan.warmup, plan.samples, plan.calls);
        runs[i].seconds.insert(runs[i].seconds.end(), seconds.begin(), seconds.end());
      });
    }
  }
}

void time_graphs(AttentionPass pass, std::vector<Entry>& entries, std::vector<AttentionRun>& runs,
                 const RaceOptions& options) {
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].rival || !(runs[i].median() < options.graph_below_seconds)) continue;
    stop_if_asked();
    runs[i].graph_trouble = trouble_of(
        [&] { runs[i].graph_seconds = entries[i].rival->graph(pass, kGraphSamples, kGraphCalls); });
  }
}

}  // namespace

std::string trouble_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Interrupted&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    return "OOM";
  } catch (const std::bad_alloc&) {
    return "OOM";
  } catch (const UserError& error) {
    const std::string text = first_line(error.what());
    return (text.starts_with("refused: ") || text.starts_with("OOM") ? "" : "refused: ") + text;
  } catch (const std::exception& error) {
    const std::string text = first_line(error.what());
    return (is_out_of_memory(text) ? "OOM: " : "failed: ") + text;
  }
}

std::vector<AttentionInputs> rotated_inputs(const AttentionCase& c, const at::Device& device,
                                            uint64_t seed) {
  const double bytes = pass_bytes(c, AttentionPass::kForward);
  const auto sets = std::clamp<int64_t>(
      1 + static_cast<int64_t>(2 * last_cache_bytes(device) / std::max(bytes, 1.0)), 1, kMostSets);
  std::vector<AttentionInputs> inputs;
  for (int64_t i = 0; i < sets; ++i)
    inputs.push_back(random_inputs(c, device, seed + static_cast<uint64_t>(i)));
  return inputs;
}

std::vector<AttentionResult> race(const AttentionCase& c, const std::vector<AttentionPass>& passes,
                                  const std::vector<AttentionContestant>& contestants,
                                  const at::Device& device, const RaceOptions& options) {
  const AttentionRound round{c, device, kRaceSeed, rotated_inputs(c, device, kRaceSeed)};
  const bool gradients = std::any_of(passes.begin(), passes.end(), [](AttentionPass pass) {
    return pass != AttentionPass::kForward;
  });
  const AttentionReference reference(c, round.inputs[0], gradients);
  std::vector<Entry> entries;
  for (const auto& contestant : contestants) {
    stop_if_asked();
    entries.push_back({&contestant, nullptr, "", {}, false});
    enter(entries.back(), round, reference, gradients);
  }
  AttentionOptions options_of_auto;
  options_of_auto.causal = c.causal;
  const auto& first = round.inputs[0];
  const std::string chosen = attention_auto(first.q, first.k, first.v, options_of_auto);
  std::vector<AttentionResult> results;
  for (const AttentionPass pass : passes) {
    AttentionResult result{c,
                           pass,
                           {},
                           limit_seconds(c, pass, device.is_cuda() ? "cuda" : "cpu"),
                           reference.checked_heads(),
                           reference.all_heads(),
                           chosen};
    for (const Entry& entry : entries) {
      AttentionRun run;
      run.contestant = entry.contestant->name;
      run.ours = entry.contestant->ours;
      run.trouble = entry.trouble;
      if (entry.checked) note_errors(run, pass, entry.errors);
      result.runs.push_back(std::move(run));
    }
    time_pass(pass, entries, result.runs, options);
    if (device.is_cuda()) time_graphs(pass, entries, result.runs, options);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace flashstep::report
