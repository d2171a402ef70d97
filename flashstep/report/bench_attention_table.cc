#include "flashstep/report/bench_attention_table.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_words.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::Column;
using measure::Table;

Column milliseconds_column(std::string name) {
  return {std::move(name),
          "ms",
          measure::Align::kRight,
          {measure::NumberFormat::Style::kSignificant, 4}};
}

Column rate_column() {
  return {
      "rate", "TFLOP/s", measure::Align::kRight, {measure::NumberFormat::Style::kSignificant, 3}};
}

// "OOM", "refused", "failed".
std::string short_form(const std::string& trouble) { return trouble.substr(0, trouble.find(':')); }

Cell time_cell(const AttentionRun& run) {
  if (!run.trouble.empty()) return short_form(run.trouble);
  if (run.seconds.empty()) return {};
  return run.median() * 1e3;
}

std::vector<std::string> contestants_of(const std::vector<AttentionResult>& results) {
  std::vector<std::string> names;
  for (const auto& result : results) {
    for (const auto& run : result.runs) {
      if (std::find(names.begin(), names.end(), run.contestant) == names.end())
        names.push_back(run.contestant);
    }
  }
  return names;
}

std::vector<Column> attention_columns() {
  return {measure::text_column("dtype"), measure::integer_column("B"), measure::integer_column("H"),
          measure::integer_column("N"),  measure::integer_column("M"), measure::integer_column("D"),
          measure::text_column("mask"),  measure::text_column("pass")};
}

std::vector<Cell> attention_cells(const AttentionResult& result) {
  const AttentionCase& c = result.c;
  return {c.dtype, c.batch,    c.heads > 0 ? Cell(c.heads) : Cell(), c.n,
          c.m,     c.head_dim, c.causal ? "causal" : "full",         pass_name(result.pass)};
}

double tflops(const AttentionResult& result, const AttentionRun& run) {
  return pass_flops(result.c, result.pass) / run.median() / 1e12;
}

// p10, p90, TFLOP/s, share of the limit.
std::vector<Cell> rate_cells(const AttentionResult& result, const AttentionRun& run) {
  if (run.seconds.empty()) return {Cell(), Cell(), Cell(), Cell()};
  return {measure::quantile(run.seconds, 0.1) * 1e3, measure::quantile(run.seconds, 0.9) * 1e3,
          tflops(result, run), 100 * result.limit_seconds / run.median()};
}

std::vector<Column> rate_columns() {
  return {milliseconds_column("p10"), milliseconds_column("p90"), rate_column(),
          measure::number_column("of limit", "%", 1)};
}

void append(std::vector<Cell>& cells, std::vector<Cell> more) {
  cells.insert(cells.end(), more.begin(), more.end());
}

bool any_graph(const std::vector<AttentionResult>& results) {
  return std::any_of(results.begin(), results.end(), [](const AttentionResult& result) {
    return std::any_of(result.runs.begin(), result.runs.end(),
                       [](const AttentionRun& run) { return !run.graph_seconds.empty(); });
  });
}

// The fastest of the peers when their launching does not count.
double best_graph(const AttentionResult& result) {
  double best = NAN;
  for (const auto& run : result.runs) {
    if (!run.ours && !run.graph_seconds.empty()) best = std::fmin(best, run.graph_median());
  }
  return best;
}

}  // namespace

Table attention_table(const std::vector<AttentionResult>& results) {
  std::vector<std::string> contestants = contestants_of(results);
  if (const AttentionRun* first = results.empty() ? nullptr : our_run(results[0]))
    std::erase(contestants, first->contestant);  // its time has the first place
  const bool graphs = any_graph(results);
  Table table;
  table.columns = attention_columns();
  const auto add_columns = [&](std::vector<Column> columns) {
    for (auto& column : columns) table.columns.push_back(std::move(column));
  };
  add_columns({measure::text_column("ours"), milliseconds_column("time")});
  add_columns(rate_columns());
  add_columns({measure::text_column("best peer"), measure::number_column("x best peer", "", 2)});
  if (graphs)
    add_columns({milliseconds_column("in a graph"), measure::number_column("x in a graph", "", 2)});
  add_columns({measure::integer_column("wrong"), measure::text_column("auto takes")});
  for (const auto& name : contestants) add_columns({milliseconds_column(name)});

  for (const auto& result : results) {
    const AttentionRun none, *ours = our_run(result), *peer = fastest(result, false);
    const AttentionRun& run = ours != nullptr ? *ours : none;
    std::vector<Cell> cells = attention_cells(result);
    append(cells, {ours != nullptr ? Cell(ours->contestant) : Cell(), time_cell(run)});
    append(cells, rate_cells(result, run));
    cells.push_back(peer != nullptr ? Cell(peer->contestant) : Cell());
    cells.push_back(peer != nullptr ? finite(peer->median() / run.median()) : Cell());
    if (graphs) {
      cells.push_back(finite(run.graph_median() * 1e3));
      cells.push_back(finite(best_graph(result) / run.graph_median()));
    }
    append(cells, {run.wrong ? Cell(*run.wrong) : Cell(), result.chosen});
    for (const auto& name : contestants) {
      const AttentionRun* other = find_run(result, name);
      cells.push_back(other != nullptr ? time_cell(*other) : Cell());
    }
    table.add_row(std::move(cells));
  }
  return table;
}

Table attention_runs_table(const std::vector<AttentionResult>& results) {
  Table table;
  table.title = "Attention: every run";
  table.columns = attention_columns();
  for (Column column : {measure::text_column("contestant"), measure::text_column("whose"),
                        milliseconds_column("time")})
    table.columns.push_back(std::move(column));
  for (Column column : rate_columns()) table.columns.push_back(std::move(column));
  for (Column column :
       {measure::integer_column("samples"), milliseconds_column("in a graph"),
        measure::integer_column("wrong"), measure::number_column("error", "tolerances", 3),
        measure::integer_column("checked heads"), measure::text_column("trouble")})
    table.columns.push_back(std::move(column));
  for (const auto& result : results) {
    for (const auto& run : result.runs) {
      std::vector<Cell> cells = attention_cells(result);
      append(cells, {run.contestant, run.ours ? "ours" : "peer", time_cell(run)});
      append(cells, rate_cells(result, run));
      append(cells, {static_cast<int64_t>(run.seconds.size()), finite(run.graph_median() * 1e3),
                     run.wrong ? Cell(*run.wrong) : Cell(), run.wrong ? Cell(run.worst) : Cell(),
                     result.checked_heads, run.trouble.empty() ? run.graph_trouble : run.trouble});
      table.add_row(std::move(cells));
    }
  }
  return table;
}

std::vector<std::string> attention_troubles(const std::vector<AttentionResult>& results) {
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const auto& result : results) {
    for (const auto& run : result.runs) {
      if (!run.trouble.empty()) ++counts[{run.contestant, run.trouble}];
      if (!run.graph_trouble.empty()) ++counts[{run.contestant, "no graph: " + run.graph_trouble}];
    }
  }
  std::vector<std::string> sentences;
  for (const auto& [what, count] : counts) {
    sentences.push_back(
        str(what.first, ", ", count, count == 1 ? " cell: " : " cells: ", what.second, "."));
  }
  return sentences;
}

}  // namespace flashstep::report
