// The results of `flashstep bench step` as tables and sentences.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/stats.h"
#include "flashstep/model/cost.h"
#include "flashstep/ops.h"
#include "flashstep/ops/internal.h"
#include "flashstep/report/account_text.h"
#include "flashstep/report/bench_step.h"
#include "flashstep/report/case_memory.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::Column;
using measure::integer_column;
using measure::number_column;
using measure::text_column;

std::vector<Column> step_columns() {
  return {text_column("model"),     number_column("parameters", "M", 2),
          integer_column("batch"),  integer_column("context"),
          text_column("precision"), text_column("attention"),
          text_column("mode"),      integer_column("warm-up", "steps")};
}

std::vector<Cell> step_cells(const StepResult& r) {
  const Workload& w = r.task.workload;
  return {shown_model(r),     static_cast<double>(parameter_count(w.model)) / 1e6,
          w.batch_size,       w.model.context_length,
          w.precision,        w.model.attention,
          shown_mode(r.task), r.task.warmup};
}

// The peers of all results, in order.
std::vector<std::string> peer_names(const std::vector<StepResult>& results) {
  std::vector<std::string> names;
  for (const StepResult& r : results) {
    for (const PeerSteps& peer : r.peers) {
      if (std::find(names.begin(), names.end(), peer.name) == names.end())
        names.push_back(peer.name);
    }
  }
  return names;
}

const PeerSteps* find_peer(const StepResult& r, const std::string& name) {
  for (const PeerSteps& peer : r.peers) {
    if (peer.name == name) return &peer;
  }
  return nullptr;
}

double median_seconds(const std::vector<TimedStep>& steps) {
  std::vector<double> seconds;
  for (const TimedStep& step : steps) {
    if (!step.warmup) seconds.push_back(step.times.total);
  }
  return measure::median(seconds);
}

// How much faster ours is; NaN without a peer.
double ratio_to(const StepResult& r, const std::string& name) {
  const PeerSteps* peer = find_peer(r, name);
  if (peer == nullptr || !r.measured()) return std::nan("");
  return median_seconds(peer->steps) / median_seconds(r.steps);
}

bool is_replayed(const StepResult& r) { return !r.replayed.steps.empty(); }

// How much faster the replayed step is than one that took `seconds`.
Cell replayed_ratio(const StepResult& r, double seconds) {
  return is_replayed(r) && seconds > 0 ? Cell(seconds / median_seconds(r.replayed.steps)) : Cell();
}

bool is_compared(const StepResult& r) { return r.gradient_error.has_value(); }

measure::Table empty_table(const std::vector<StepResult>& results) {
  measure::Table table;
  table.title =
      str("Training step on the ",
          !results.empty() && results.front().task.workload.device == "cuda" ? "GPU" : "CPU");
  table.columns = step_columns();
  for (const char* name :
       {"mean", "deviation", "median", "p10", "p90", "forward", "backward", "optimizer"}) {
    table.columns.push_back(significant_column(name, "ms", 4));
  }
  table.columns.push_back(number_column("tokens", "1/s", 0));
  table.columns.push_back(significant_column("work", "TFLOP", 3));
  table.columns.push_back(significant_column("rate", "TFLOP/s", 3));
  table.columns.push_back(number_column("of limit", "%", 1));
  table.columns.push_back(number_column("peak memory", "GiB", 2));
  if (std::any_of(results.begin(), results.end(), is_compared)) {
    table.columns.push_back({"gradient error",
                             "",
                             measure::Align::kRight,
                             {measure::NumberFormat::Style::kScientific, 1}});
  }
  const bool replayed = std::any_of(results.begin(), results.end(), is_replayed);
  if (replayed) {
    for (const char* name : {"graph median", "graph p10", "graph p90"})
      table.columns.push_back(significant_column(name, "ms", 4));
    table.columns.push_back(number_column("graph tokens", "1/s", 0));
    table.columns.push_back(number_column("graph of limit", "%", 1));
    table.columns.push_back(number_column("graph peak memory", "GiB", 2));
    table.columns.push_back(number_column("graph x launched", "", 2));
  }
  for (const std::string& peer : peer_names(results)) {
    table.columns.push_back(number_column(peer, "tokens/s", 0));
    table.columns.push_back(number_column("x " + peer, "", 2));
    if (replayed) table.columns.push_back(number_column("graph x " + peer, "", 2));
  }
  return table;
}

std::vector<Cell> time_cells(const StepResult& r) {
  const auto total = r.milliseconds(&StepTimes::total);
  std::vector<Cell> cells = {measure::mean(total)};
  cells.push_back(total.size() > 1 ? Cell(measure::sample_stddev(total)) : Cell());
  cells.insert(cells.end(), {Cell(measure::median(total)), Cell(measure::quantile(total, 0.1)),
                             Cell(measure::quantile(total, 0.9)),
                             Cell(measure::median(r.milliseconds(&StepTimes::forward)))});
  const Workload& w = r.task.workload;
  cells.push_back(has_backward(w) ? Cell(measure::median(r.milliseconds(&StepTimes::backward)))
                                  : Cell());
  cells.push_back(has_update(w) ? Cell(measure::median(r.milliseconds(&StepTimes::optimizer)))
                                : Cell());
  return cells;
}

std::vector<Cell> rate_cells(const StepResult& r) {
  const Workload& w = r.task.workload;
  const double seconds = median_seconds(r.steps), flops = pass_flops(w);
  return {static_cast<double>(w.batch_size * w.model.context_length) / seconds, flops / 1e12,
          flops / seconds / 1e12,
          100 * flops / seconds / measure::matmul_limit_flops(w.device, w.precision),
          r.peak_bytes / kGiB};
}

std::vector<Cell> replayed_cells(const StepResult& r) {
  constexpr size_t kCells = 7;
  if (!is_replayed(r)) return std::vector<Cell>(kCells);
  std::vector<double> milliseconds;
  for (const TimedStep& step : r.replayed.steps) {
    if (!step.warmup) milliseconds.push_back(step.times.total * 1e3);
  }
  const Workload& w = r.task.workload;
  const double seconds = measure::median(milliseconds) * 1e-3;
  return {seconds * 1e3,
          measure::quantile(milliseconds, 0.1),
          measure::quantile(milliseconds, 0.9),
          static_cast<double>(w.batch_size * w.model.context_length) / seconds,
          100 * pass_flops(w) / seconds / measure::matmul_limit_flops(w.device, w.precision),
          r.replayed.peak_bytes / kGiB,
          replayed_ratio(r, median_seconds(r.steps))};
}

std::vector<Cell> peer_cells(const StepResult& r, const std::string& name) {
  const PeerSteps* peer = find_peer(r, name);
  if (peer == nullptr) return {Cell(), Cell(), Cell()};
  if (peer->steps.empty()) {
    const bool memory = is_out_of_memory(peer->trouble) || peer->trouble.starts_with("OOM");
    return {memory ? Cell("OOM") : Cell(), Cell(), Cell()};
  }
  const Workload& w = r.task.workload;
  const Cell tokens(static_cast<double>(w.batch_size * w.model.context_length) /
                    median_seconds(peer->steps));
  return {tokens, r.measured() ? Cell(ratio_to(r, name)) : Cell(),
          replayed_ratio(r, median_seconds(peer->steps))};
}

void add_run_rows(const StepResult& r, const std::string& who, const std::vector<TimedStep>& steps,
                  measure::Table& table) {
  const Workload& w = r.task.workload;
  int64_t number = 0;
  for (const TimedStep& step : steps) {
    std::vector<Cell> cells = {who};
    for (Cell& cell : step_cells(r)) cells.push_back(std::move(cell));
    cells.insert(cells.end(),
                 {Cell(step.turn + 1), Cell(++number), Cell(step.warmup ? "warm-up" : "timed")});
    const StepTimes& t = step.times;
    const auto part = [](bool there, double seconds) {
      return there && seconds > 0 ? Cell(seconds * 1e3) : Cell();
    };
    cells.insert(cells.end(), {part(true, t.forward), part(has_backward(w), t.backward),
                               part(has_update(w), t.optimizer), Cell(t.total * 1e3)});
    table.add_row(std::move(cells));
  }
}

}  // namespace

std::string shown_mode(const StepTask& task) {
  return mode_text(task.workload) + (task.deterministic ? ", deterministic" : "");
}

std::string shown_model(const StepResult& r) {
  const ModelConfig& model = r.task.workload.model;
  if (r.whole_layers == 0) return model_name(model);
  ModelConfig whole = model;
  whole.num_layers = r.whole_layers;
  return str(model_name(whole), ", ", model.num_layers, " of ", r.whole_layers, " layers *");
}

measure::Table step_table(const std::vector<StepResult>& results) {
  measure::Table table = empty_table(results);
  const bool compared = std::any_of(results.begin(), results.end(), is_compared);
  const bool replayed = std::any_of(results.begin(), results.end(), is_replayed);
  for (const StepResult& r : results) {
    std::vector<Cell> cells = step_cells(r);
    if (r.measured()) {
      for (Cell& cell : time_cells(r)) cells.push_back(std::move(cell));
      for (Cell& cell : rate_cells(r)) cells.push_back(std::move(cell));
      if (compared) cells.push_back(r.gradient_error ? Cell(*r.gradient_error) : Cell());
      if (replayed) {
        for (Cell& cell : replayed_cells(r)) cells.push_back(std::move(cell));
      }
      for (const std::string& peer : peer_names(results)) {
        std::vector<Cell> of_peer = peer_cells(r, peer);
        if (!replayed) of_peer.pop_back();
        for (Cell& cell : of_peer) cells.push_back(std::move(cell));
      }
    } else {
      cells.emplace_back(r.out_of_memory() ? "OOM" : "failed");
    }
    cells.resize(table.columns.size());
    table.add_row(std::move(cells));
  }
  return table;
}

measure::Table step_runs(const std::vector<StepResult>& results) {
  measure::Table table;
  table.title = "Every single step";
  table.columns = {text_column("who")};
  for (Column& column : step_columns()) table.columns.push_back(std::move(column));
  table.columns.insert(table.columns.end(),
                       {integer_column("turn"), integer_column("step"), text_column("kind")});
  for (const char* part : {"forward", "backward", "optimizer", "total"})
    table.columns.push_back(significant_column(part, "ms", 4));
  for (const StepResult& r : results) {
    add_run_rows(r, "flashstep", r.steps, table);
    add_run_rows(r, "flashstep graph", r.replayed.steps, table);
    for (const PeerSteps& peer : r.peers) add_run_rows(r, peer.name, peer.steps, table);
  }
  return table;
}

std::vector<std::string> step_notes(const std::vector<StepResult>& results) {
  std::vector<std::string> notes;
  for (const StepResult& r : results) {
    const std::string what =
        (r.whole_layers > 0 ? shown_model(r) + ": " : "") + describe(r.task.workload);
    if (!r.measured()) notes.push_back(str(what, ": ", r.trouble, "."));
    if (!r.replayed.trouble.empty())
      notes.push_back(str(what, ": in a graph: ", r.replayed.trouble, "."));
    for (const PeerSteps& peer : r.peers) {
      if (!peer.trouble.empty())
        notes.push_back(str(what, ": PyTorch ", peer.name, ": ", peer.trouble, "."));
    }
  }
  const auto reduced = [](const StepResult& r) { return r.whole_layers > 0; };
  if (std::any_of(results.begin(), results.end(), reduced)) {
    notes.emplace_back(
        "*: the size does not fit into memory; this is the same with as many of its layers as do.");
  }
  const auto is_bf16_on_cpu = [](const StepResult& r) {
    return r.task.workload.precision == "bf16" && r.task.workload.device == "cpu";
  };
  const std::string products = products_note(at::kBFloat16);
  if (!products.empty() && std::any_of(results.begin(), results.end(), is_bf16_on_cpu)) {
    notes.push_back("bf16: " + products + ".");
  }
  notes.emplace_back(
      "forward: the loss, without a graph for backward; step: forward, backward, clipping and "
      "AdamW. The host waits for the device before and after every step. Forward, backward and "
      "optimizer are medians of their own, on the device. Work: the model's matrix products, of "
      "the "
      "keys that a query sees. Limit: the matrix products' of this dtype, measured. Peak memory: "
      "tensors on a GPU; on a CPU what the process has resident beyond what it began with.");
  return notes;
}

std::vector<std::string> step_verdict(const std::vector<StepResult>& results) {
  std::vector<std::string> sentences;
  for (const std::string& peer : peer_names(results)) {
    std::vector<double> ratios;
    for (const StepResult& r : results) {
      const double ratio = ratio_to(r, peer);
      if (!std::isnan(ratio)) ratios.push_back(ratio);
    }
    if (ratios.empty()) continue;
    const double worst = *std::min_element(ratios.begin(), ratios.end());
    sentences.push_back(str("Verdict: ", worst >= 1 ? "at least" : "NOT everywhere at least",
                            " PyTorch ", peer, "'s speed; the worst of ", ratios.size(),
                            " cases has ", fixed(worst, 2),
                            " times its tokens/s, the geometric mean is ",
                            fixed(measure::geometric_mean(ratios), 2), "."));
  }
  return sentences;
}

}  // namespace flashstep::report
