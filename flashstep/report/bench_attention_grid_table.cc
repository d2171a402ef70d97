// The results of the preset "grid" as a table, sentences and pictures.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_attention_grid.h"
#include "flashstep/report/bench_attention_results.h"

namespace flashstep::report {
namespace {

using measure::Cell;

Cell mebibytes(const GridCell& cell, double bytes) {
  return bytes > 0 || cell.before_backward > 0 ? Cell(bytes / (1 << 20)) : Cell();
}

// Median, p10, p90 in milliseconds, or what went wrong.
void append_times(std::vector<Cell>& cells, const GridCell& cell,
                  const std::vector<double>& seconds) {
  if (seconds.empty()) {
    cells.push_back(cell.trouble.empty() ? Cell()
                                         : Cell(cell.trouble.substr(0, cell.trouble.find(':'))));
    cells.insert(cells.end(), 2, Cell());
    return;
  }
  for (const double q : {0.5, 0.1, 0.9}) cells.push_back(measure::quantile(seconds, q) * 1e3);
}

bool timed(const GridCell& cell) {
  return !cell.forward_seconds.empty() && !cell.backward_seconds.empty();
}

// A forward and a backward pass.
double both_seconds(const GridCell& cell) {
  return measure::median(cell.forward_seconds) + measure::median(cell.backward_seconds);
}

bool is_peer(const GridCell& cell) {
  return cell.contestant != "auto" && cell.contestant != "cuda" && cell.contestant != "cpu" &&
         cell.contestant != "tiled";
}

// The fastest peer's time over this cell's; NaN for a peer, or without one.
double times_best_peer(const std::vector<GridCell>& cells, const GridCell& cell) {
  double best = NAN;
  for (const GridCell& other : cells) {
    if (is_peer(other) && timed(other) && other.c == cell.c)
      best = std::fmin(best, both_seconds(other));
  }
  return is_peer(cell) || !timed(cell) ? NAN : best / both_seconds(cell);
}

std::vector<measure::Column> grid_columns() {
  using measure::integer_column;
  using measure::number_column;
  using measure::text_column;
  return {text_column("contestant"),
          text_column("dtype"),
          integer_column("B"),
          integer_column("D"),
          integer_column("N"),
          number_column("forward", "ms", 3),
          number_column("forward p10", "ms", 3),
          number_column("forward p90", "ms", 3),
          number_column("backward", "ms", 3),
          number_column("backward p10", "ms", 3),
          number_column("backward p90", "ms", 3),
          number_column("rate", "TFLOP/s", 2),
          number_column("of limit", "%", 1),
          number_column("x best peer", "", 2),
          integer_column("passes"),
          number_column("forward peak", "MiB", 1),
          number_column("before backward", "MiB", 1),
          number_column("backward peak", "MiB", 1),
          number_column("after backward", "MiB", 1),
          integer_column("wrong")};
}

// `value` of each contestant's cells against N, at head dim 64 or the largest.
template <typename Value>
measure::Plot grid_plot(const std::vector<GridCell>& cells, const Value& value) {
  int64_t d = 0;
  for (const auto& cell : cells) d = d == 64 || cell.c.head_dim == 64 ? 64 : cell.c.head_dim;
  measure::Plot plot;
  const int64_t batch = cells.empty() ? 0 : cells.front().c.batch;
  plot.subtitle = str("batch ", batch, ", no heads, head_dim ", d);
  plot.x = {"seq_len", measure::Scale::kLog2, {}};
  for (const auto& cell : cells) {
    if (cell.c.head_dim != d || !(value(cell) > 0)) continue;
    const std::string name = str(cell.contestant, " ", cell.c.dtype);
    auto series = std::find_if(plot.series.begin(), plot.series.end(),
                               [&](const auto& s) { return s.name == name; });
    if (series == plot.series.end()) {
      plot.series.push_back({.name = name, .kind = measure::Series::Kind::kLineAndPoints});
      series = plot.series.end() - 1;
    }
    series->x.push_back(static_cast<double>(cell.c.n));
    series->y.push_back(value(cell));
  }
  return plot;
}

double gibibytes(double bytes) { return bytes / (1 << 30); }

}  // namespace

bool out_of_memory(const GridCell& cell) {
  return cell.contestant == "naive" && cell.trouble.rfind("OOM", 0) == 0;
}

measure::Table grid_table(const std::vector<GridCell>& cells, const std::string& device) {
  measure::Table table;
  table.columns = grid_columns();
  for (const GridCell& cell : cells) {
    std::vector<Cell> row = {cell.contestant, cell.c.dtype, cell.c.batch, cell.c.head_dim,
                             cell.c.n};
    append_times(row, cell, cell.forward_seconds);
    append_times(row, cell, cell.backward_seconds);
    const double seconds = both_seconds(cell), best = times_best_peer(cells, cell);
    const bool there = timed(cell);
    row.push_back(there ? Cell(pass_flops(cell.c, AttentionPass::kBoth) / seconds / 1e12) : Cell());
    row.push_back(there ? Cell(100 * limit_seconds(cell.c, AttentionPass::kBoth, device) / seconds)
                        : Cell());
    row.push_back(std::isfinite(best) ? Cell(best) : Cell());
    row.push_back(there ? Cell(static_cast<int64_t>(cell.forward_seconds.size())) : Cell());
    for (const double bytes :
         {cell.forward_peak, cell.before_backward, cell.backward_peak, cell.after_backward})
      row.push_back(mebibytes(cell, bytes));
    row.push_back(cell.wrong ? Cell(*cell.wrong) : Cell());
    table.add_row(std::move(row));
  }
  return table;
}

// How ours stand to the peers: the last line.
std::string grid_verdict(const std::vector<GridCell>& cells) {
  std::vector<double> ratios;
  for (const GridCell& cell : cells) {
    const double ratio = times_best_peer(cells, cell);
    if (std::isfinite(ratio)) ratios.push_back(ratio);
  }
  if (ratios.empty()) return "Verdict: no cell with ours and a peer.";
  return str("Verdict: a forward and a backward pass of ours are ",
             fixed(measure::geometric_mean(ratios), 2),
             " x the best peer's speed in geometric mean, at least ",
             fixed(*std::min_element(ratios.begin(), ratios.end()), 2), " x, in ", ratios.size(),
             " cells.");
}

std::vector<NamedPicture> grid_pictures(const std::vector<GridCell>& cells) {
  auto time = grid_plot(
      cells, [](const GridCell& cell) { return timed(cell) ? both_seconds(cell) * 1e3 : 0; });
  time.title = "Attention: a forward and a backward pass";
  time.y = {"ms", measure::Scale::kLog, {}};
  auto memory =
      grid_plot(cells, [](const GridCell& cell) { return cell.before_backward / (1 << 20); });
  memory.title = "Attention: memory before backward, beyond the inputs";
  memory.y = {"MiB", measure::Scale::kLog, {}};
  std::vector<NamedPicture> pictures = {{"time", std::move(time)}};
  if (!memory.series.empty()) pictures.push_back({"memory", std::move(memory)});
  return pictures;
}

std::vector<std::string> grid_notes(const std::vector<GridCell>& cells) {
  std::vector<std::string> notes;
  for (const GridCell& cell : cells) {
    if (cell.trouble.empty() || cell.trouble == "OOM") continue;
    notes.push_back(str(cell.contestant, ", ", describe(cell.c), ": ", cell.trouble, "."));
  }
  const auto wrong = std::accumulate(
      cells.begin(), cells.end(), int64_t{0},
      [](int64_t sum, const GridCell& cell) { return sum + cell.wrong.value_or(0); });
  notes.push_back(
      str("Times: medians of single passes, every one waited for; rate, limit and x best peer: a "
          "forward and a backward pass. Memory: tensors beyond the inputs; after backward "
          "the output and three gradients are left. Wrong elements of all: ",
          wrong, "."));
  return notes;
}

std::vector<std::string> grid_accounting(const std::vector<GridCell>& cells, double memory_bytes) {
  const auto failed = std::find_if(cells.begin(), cells.end(), out_of_memory);
  if (failed == cells.end()) return {};
  const auto matrix = [](const GridCell& cell) {
    return attention_matrix_bytes(size_of(cell.c), element_bytes(cell.c));
  };
  const double needed = matrix(*failed);
  std::vector<std::string> sentences;
  sentences.push_back(str("The first that does not fit: naive, ", describe(failed->c),
                          ". One (B, N, N) matrix is ", failed->c.batch, " x ", failed->c.n,
                          "^2 x ", element_bytes(failed->c),
                          " bytes = ", fixed(gibibytes(needed), 2), " GiB; the device has ",
                          fixed(gibibytes(memory_bytes), 1), " GiB."));
  // What a smaller one held, in matrices: its vectors are nothing beside them.
  const GridCell* largest = nullptr;
  for (const GridCell& cell : cells) {
    const bool fitted = cell.contestant == "naive" && cell.trouble.empty() &&
                        cell.c.dtype == failed->c.dtype && cell.before_backward > 0;
    if (fitted && (largest == nullptr || cell.c.n > largest->c.n)) largest = &cell;
  }
  if (largest == nullptr) return sentences;
  const double unit = matrix(*largest);
  const auto count = [&](double bytes) { return fixed(bytes / unit, 2); };
  sentences.push_back(
      str("At N ", largest->c.n, " the forward pass held ", count(largest->forward_peak),
          " such matrices at once (scores, scaled scores, weights) and kept ",
          count(largest->before_backward), " for backward; backward held ",
          count(largest->backward_peak), " (those, and the gradients of weights and scores): at N ",
          failed->c.n, " that is ", fixed(gibibytes(largest->backward_peak / unit * needed), 1),
          " GiB."));
  sentences.push_back(str(
      "Backward gave back ",
      fixed(gibibytes(largest->before_backward - largest->after_backward), 2), " of the ",
      fixed(gibibytes(largest->before_backward), 2), " GiB that were kept at N ", largest->c.n,
      "; ", fixed(largest->after_backward / (1 << 20), 0), " MiB of output and gradients stay."));
  return sentences;
}

}  // namespace flashstep::report
