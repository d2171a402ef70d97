// How the results stand to the bars that attention is held against.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_attention_rivals.h"
#include "flashstep/report/bench_attention_table.h"
#include "flashstep/report/bench_words.h"

namespace flashstep::report {
namespace {

using AttentionResults = std::vector<AttentionResult>;
using Chosen = std::function<bool(const AttentionResult&)>;

// "2.31 (29 rows)": the geometric mean of ours against `peer`, over the rows where both have a
// time.
struct Ratio {
  double mean = NAN;
  int64_t rows = 0;
};
Ratio ratio_to(const AttentionResults& results, const std::string& peer, const Chosen& chosen) {
  std::vector<double> ratios;
  for (const auto& result : results) {
    const AttentionRun *ours = our_run(result), *theirs = find_run(result, peer);
    if (!chosen(result) || ours == nullptr || theirs == nullptr) continue;
    const double ratio = theirs->median() / ours->median();
    if (std::isfinite(ratio)) ratios.push_back(ratio);
  }
  return {measure::geometric_mean(ratios), static_cast<int64_t>(ratios.size())};
}

// One sentence for one bar; none where nothing was measured.
void judge(std::vector<std::string>& sentences, const AttentionResults& results,
           const std::string& what, const std::string& peer, double bar, const Chosen& chosen) {
  const Ratio ratio = ratio_to(results, peer, chosen);
  if (ratio.rows == 0) return;
  sentences.push_back(str(what, ": ", fixed(ratio.mean, 3), " x ", peer, " in geometric mean over ",
                          ratio.rows, " rows (bar ", fixed(bar, 1), ": ",
                          standing(ratio.mean >= bar), ")."));
}

Chosen rows_of(const std::string& dtype, AttentionPass pass) {
  return [dtype, pass](const AttentionResult& r) { return r.c.dtype == dtype && r.pass == pass; };
}

constexpr int64_t kLaunchBound = 512;  // the N up to which a call's time is mostly its launching

// Whether ours is no slower than a peer: its median within the peer's spread (p90), or in a graph
// where launching is most of the time.
bool no_slower(const AttentionRun& ours, const AttentionRun& peer, int64_t n) {
  if (ours.seconds.empty()) return false;
  const bool graphs =
      n <= kLaunchBound && !ours.graph_seconds.empty() && !peer.graph_seconds.empty();
  return ours.median() <= measure::quantile(peer.seconds, 0.9) ||
         (graphs && ours.graph_median() <= peer.graph_median());
}

// On how many rows ours is no slower than both naive and flash.
void judge_every_row(std::vector<std::string>& sentences, const AttentionResults& results,
                     AttentionPass pass) {
  int64_t rows = 0, kept = 0;
  std::vector<std::string> lost;
  for (const auto& result : results) {
    const AttentionRun* ours = our_run(result);
    if (!rows_of("bf16", pass)(result) || ours == nullptr) continue;
    bool peers = false, won = true;
    for (const char* name : {"naive", "flash"}) {
      const AttentionRun* peer = find_run(result, name);
      if (peer == nullptr || peer->seconds.empty()) continue;
      peers = true;
      won = won && no_slower(*ours, *peer, result.c.n);
    }
    if (!peers) continue;
    ++rows;
    kept += won;
    if (!won) lost.push_back(str("N ", result.c.n, " D ", result.c.head_dim));
  }
  if (rows == 0) return;
  std::string sentence =
      str("bf16 ", pass_name(pass),
          ": no slower than naive and flash (their p90, or up to N 512 in a graph) on ", kept,
          " of ", rows, " rows (bar all: ", standing(kept == rows), ")");
  if (!lost.empty()) sentence += "; not on " + join(lost);
  sentences.push_back(sentence + ".");
}

void judge_handout(std::vector<std::string>& sentences, const AttentionResults& results) {
  for (const AttentionPass pass :
       {AttentionPass::kForward, AttentionPass::kBackward, AttentionPass::kBoth}) {
    judge_every_row(sentences, results, pass);
    const double bar = pass == AttentionPass::kForward ? 1.3 : 1.2;
    judge(sentences, results, str("bf16 ", pass_name(pass), ", N <= 16384"), "flash", bar,
          [&](const AttentionResult& r) { return rows_of("bf16", pass)(r) && r.c.n <= 16384; });
  }
  for (const AttentionPass pass :
       {AttentionPass::kForward, AttentionPass::kBackward, AttentionPass::kBoth}) {
    judge(sentences, results, str("fp32 ", pass_name(pass), ", N >= 1024"), "naive", 3,
          [&](const AttentionResult& r) { return rows_of("fp32", pass)(r) && r.c.n >= 1024; });
  }
  int64_t too_large = 0, ran = 0;
  for (const auto& result : results) {
    const AttentionRun *ours = our_run(result), *naive = find_run(result, "naive");
    if (ours == nullptr || naive == nullptr || naive->trouble.rfind("OOM", 0) != 0) continue;
    ++too_large;
    ran += !ours->seconds.empty();
  }
  sentences.push_back(too_large == 0
                          ? "There is no row that naive cannot fit here."
                          : str("Of the ", too_large, " rows that naive cannot fit, ", ran,
                                " run (bar all: ", standing(ran == too_large), ")."));
}

void judge_throughput(std::vector<std::string>& sentences, const AttentionResults& results) {
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    for (const int64_t d : {64, 128}) {
      judge(
          sentences, results, str("bf16 ", pass_name(pass), ", D ", d), "flash", 1.0,
          [&](const AttentionResult& r) { return rows_of("bf16", pass)(r) && r.c.head_dim == d; });
    }
  }
}

// The bars are set over both masks; each mask, and how near the limit ours is, stand beside them.
void judge_cpu(std::vector<std::string>& sentences, const AttentionResults& results) {
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
      const bool hard = pass == AttentionPass::kBackward && std::string(dtype) == "bf16";
      const Chosen chosen = rows_of(dtype, pass);
      judge(sentences, results, str(dtype, " ", pass_name(pass)), "sdpa", hard ? 1.8 : 1.5, chosen);
      const auto masked = [&](bool causal) {
        return ratio_to(results, "sdpa", [&](const AttentionResult& r) {
          return chosen(r) && r.c.causal == causal;
        });
      };
      std::vector<double> shares;
      for (const auto& result : results) {
        const AttentionRun* ours = our_run(result);
        if (chosen(result) && ours != nullptr && !ours->seconds.empty())
          shares.push_back(100 * result.limit_seconds / ours->median());
      }
      if (shares.empty() || masked(true).rows * masked(false).rows == 0) continue;
      sentences.back().pop_back();
      sentences.back() +=
          str(": causal ", fixed(masked(true).mean, 2), ", full ", fixed(masked(false).mean, 2),
              "; ours runs at ", fixed(measure::median(shares), 0), " % of the limit (median).");
    }
  }
}

// Seconds of a pass in each implementation that a caller can name. Those of "auto" are those of
// the one that it takes: the same code, timed once.
std::map<std::string, double> offered(const AttentionResult& result) {
  std::vector<const AttentionRun*> runs;
  for (const auto& run : result.runs) {
    const bool named = run.ours || run.contestant == "sdpa" || run.contestant == "naive";
    const bool same_kernels = run.contestant == "auto" || run.contestant == kDeterministic;
    if (named && !same_kernels && !run.seconds.empty()) runs.push_back(&run);
  }
  if (runs.empty()) return {};
  double fastest = runs.front()->median();
  for (const AttentionRun* run : runs) fastest = std::min(fastest, run->median());
  // Small calls differ by their launching alone: graphs tell more there, if all that could be the
  // best have them.
  const auto is_near = [&](const AttentionRun* run) { return run->median() < 3 * fastest; };
  const bool graphs = std::all_of(runs.begin(), runs.end(), [&](const AttentionRun* run) {
    return !is_near(run) || !run->graph_seconds.empty();
  });
  std::map<std::string, double> seconds;
  for (const AttentionRun* run : runs) {
    seconds[run->contestant] = graphs && is_near(run) ? run->graph_median() : run->median();
  }
  return seconds;
}

// A case and what its passes take together: auto chooses once for forward and backward.
struct CaseTimes {
  AttentionCase c;
  std::string chosen;
  std::map<std::string, double> seconds;
};

std::vector<CaseTimes> times_by_case(const AttentionResults& results) {
  std::vector<CaseTimes> cases;
  for (const auto& result : results) {
    if (result.pass == AttentionPass::kBoth) continue;  // the sum of the others
    const auto seconds = offered(result);
    auto at = std::find_if(cases.begin(), cases.end(),
                           [&](const CaseTimes& times) { return times.c == result.c; });
    if (at == cases.end()) {
      cases.push_back({result.c, result.chosen, seconds});
      continue;
    }
    for (auto it = at->seconds.begin(); it != at->seconds.end();) {
      const auto more = seconds.find(it->first);
      if (more == seconds.end()) {
        it = at->seconds.erase(it);  // does not run in every pass
      } else {
        (it++)->second += more->second;
      }
    }
  }
  return cases;
}

void judge_auto(std::vector<std::string>& sentences, const AttentionResults& results) {
  int64_t rows = 0, close = 0;
  double worst = 1;
  std::string where;
  for (const auto& [c, chosen, seconds] : times_by_case(results)) {
    const auto taken = seconds.find(chosen);
    if (taken == seconds.end() || seconds.size() < 2) continue;
    const auto best = std::min_element(seconds.begin(), seconds.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    const double ratio = taken->second / best->second;
    ++rows;
    close += ratio <= 1.05;
    if (ratio > worst) {
      worst = ratio;
      where = str(describe(c), " (", chosen, ", not ", best->first, ")");
    }
  }
  if (rows == 0) return;
  sentences.push_back(
      str("auto takes what is within 5 % of the fastest implementation, all passes together, in ",
          close, " of ", rows, " cases (bar all: ", standing(close == rows), ")",
          where.empty() ? "" : str("; the worst ", fixed(worst, 2), " x at ", where), "."));
}

// What it costs that bits repeat. The forward pass is the same.
void judge_deterministic(std::vector<std::string>& sentences, const AttentionResults& results) {
  for (const char* dtype : {"bf16", "fp32"}) {
    std::vector<double> ratios;
    for (const auto& result : results) {
      const AttentionRun *ours = our_run(result), *repeats = find_run(result, kDeterministic);
      if (result.c.dtype != dtype || result.pass != AttentionPass::kBackward ||
          result.c.n <= kLaunchBound || ours == nullptr || repeats == nullptr ||
          ours->seconds.empty() || repeats->seconds.empty())
        continue;
      ratios.push_back(repeats->median() / ours->median());
    }
    if (ratios.empty()) continue;
    sentences.push_back(str(dtype, " backward takes ", fixed(measure::geometric_mean(ratios), 2),
                            " x as long where bits must repeat (N > ", kLaunchBound, ", ",
                            ratios.size(), " rows, at most ",
                            fixed(*std::max_element(ratios.begin(), ratios.end()), 2), " x)."));
  }
}

void judge_correctness(std::vector<std::string>& sentences, const AttentionResults& results) {
  int64_t ours = 0, peers = 0, rows = 0, missing = 0;
  for (const auto& result : results) {
    for (const auto& run : result.runs) {
      if (run.ours && run.wrong) ++rows;  // others were refused, or failed
      if (run.ours && run.trouble.rfind("failed", 0) == 0) ++missing;
      (run.ours ? ours : peers) += run.wrong.value_or(0);
    }
  }
  sentences.push_back(str("Wrong elements: ours ", ours, " in ", rows, " runs",
                          missing > 0 ? str(" (", missing, " failed)") : "", ", peers ", peers,
                          " (", standing(ours == 0 && missing == 0), ")."));
}

}  // namespace

std::vector<std::string> attention_verdict(const std::string& preset,
                                           const AttentionResults& results) {
  std::vector<std::string> sentences;
  if (results.empty()) return {"Verdict: nothing was measured."};
  // The bars of the GPU's presets are set against what runs there only.
  const bool flash = find_run(results[0], "flash") != nullptr;
  if (preset == "handout" && flash) judge_handout(sentences, results);
  if (preset == "throughput" && flash) judge_throughput(sentences, results);
  if (preset == "cpu") judge_cpu(sentences, results);
  std::vector<double> ratios;
  for (const auto& result : results) {
    const AttentionRun *ours = our_run(result), *peer = fastest(result, false);
    if (ours == nullptr || peer == nullptr || ours->seconds.empty()) continue;
    ratios.push_back(peer->median() / ours->median());
  }
  judge_auto(sentences, results);
  judge_deterministic(sentences, results);
  judge_correctness(sentences, results);
  std::string last = "Verdict: no row with ours and a peer.";
  if (!ratios.empty()) {
    const auto won = std::count_if(ratios.begin(), ratios.end(), [](double r) { return r >= 1; });
    last = str("Verdict: ", fixed(measure::geometric_mean(ratios), 2),
               " x the best peer in geometric mean, at least ",
               fixed(*std::min_element(ratios.begin(), ratios.end()), 2),
               " x; as fast or faster on ", won, " of ", ratios.size(), " rows.");
  }
  sentences.push_back(last);
  return sentences;
}

}  // namespace flashstep::report
