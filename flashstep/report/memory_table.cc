// Tables, sentences and pictures of `flashstep memory`.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/case_memory.h"
#include "flashstep/report/memory.h"
#include "flashstep/report/units.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::MemoryKind;
using measure::Table;

constexpr size_t kOperators = 5;  // a case, as the handout asks

Cell mib(double bytes) { return bytes > 0 ? Cell(bytes / kMiB) : Cell(); }
Cell mib(int64_t bytes) { return mib(static_cast<double>(bytes)); }

// "2.7B", or "2.7B (12 of 32 layers)".
std::string size_of(const MemoryResult& result) {
  const Workload& w = result.task.workload;
  if (result.whole_layers == 0) return model_name(w.model);
  Workload whole = w;
  whole.model.num_layers = result.whole_layers;
  return str(model_name(whole.model), " (", w.model.num_layers, " of ", result.whole_layers,
             " layers)");
}

std::vector<measure::Column> columns_of(const std::vector<std::string>& texts,
                                        const std::vector<std::string>& megabytes) {
  std::vector<measure::Column> columns;
  for (const std::string& name : texts) columns.push_back(measure::text_column(name));
  for (const std::string& name : megabytes) {
    columns.push_back(measure::number_column(name, "MiB", 2));
  }
  return columns;
}

// ---- Peaks

// Kinds in the order of the picture's layers.
constexpr MemoryKind kKindColumns[] = {MemoryKind::kParameters,     MemoryKind::kGradients,
                                       MemoryKind::kOptimizerState, MemoryKind::kActivations,
                                       MemoryKind::kTemporaries,    MemoryKind::kCommunication,
                                       MemoryKind::kOther};

Table peak_table(const std::vector<MemoryResult>& results) {
  Table table;
  table.title = "Peak memory of one pass, by what it holds";
  table.columns = {measure::text_column("size"),
                   measure::integer_column("context"),
                   measure::integer_column("batch"),
                   measure::text_column("mode"),
                   measure::text_column("precision"),
                   measure::text_column("attention"),
                   measure::number_column("peak", "MiB", 2)};
  for (const MemoryKind kind : kKindColumns) {
    table.columns.push_back(measure::number_column(measure::name_of(kind), "MiB", 2));
  }
  table.columns.push_back(measure::text_column("peak in"));
  for (const char* name : {"forward peak", "backward peak", "optimizer peak", "formulas"}) {
    table.columns.push_back(measure::number_column(name, "MiB", 2));
  }
  table.columns.push_back(measure::number_column("on the device", "MiB", 1));
  for (const MemoryResult& r : results) {
    const Workload& w = r.task.workload;
    std::vector<Cell> row = {size_of(r),  w.model.context_length, w.batch_size, mode_text(w),
                             w.precision, w.model.attention};
    const bool measured = r.measured();
    // "OOM" alone: why stands in a note.
    row.push_back(measured ? mib(measure::total(r.at_peak))
                           : Cell(r.failure.substr(0, r.failure.find(':'))));
    for (const MemoryKind kind : kKindColumns) {
      row.push_back(measured ? mib(r.at_peak[static_cast<size_t>(kind)]) : Cell());
    }
    row.push_back(measured ? Cell(r.peak_range) : Cell());
    row.insert(row.end(), {mib(r.forward), mib(r.backward), mib(r.update)});
    row.push_back(mib(needed_bytes(w).about));
    row.push_back(mib(r.device_bytes));
    table.add_row(std::move(row));
  }
  return table;
}

std::vector<std::string> peak_notes(const std::vector<MemoryResult>& results) {
  std::vector<std::string> notes = {
      "Bytes that tensors asked the allocator for; kinds are those at the moment of the peak. "
      "Activations: made by the forward pass and there at its end; temporaries: whatever else a "
      "pass makes; other: inputs, tables and cuBLAS's workspace (GPU). Formulas: what lives "
      "through the step and what backward needs (model/cost.h, train/cost.h), all at once, without "
      "temporaries. On the device: the allocator's own count, in its blocks (GPU), or what the "
      "process had resident (CPU)."};
  for (const MemoryResult& r : results) {
    if (!r.measured()) {
      notes.push_back(str(size_of(r), ", context ", r.task.workload.model.context_length, ", ",
                          r.task.workload.mode, ", ", r.task.workload.precision, ": ", r.failure,
                          "."));
    }
  }
  return notes;
}

// ---- Largest allocations

Table largest_table(const std::vector<MemoryResult>& results) {
  Table table;
  table.title = "Largest allocations";
  table.columns = {measure::text_column("size"),      measure::integer_column("context"),
                   measure::text_column("mode"),      measure::text_column("precision"),
                   measure::text_column("attention"), measure::number_column("bytes", "MiB", 3),
                   measure::integer_column("count")};
  for (const auto& column : columns_of({"kind", "shape", "range", "made by", "source"}, {})) {
    table.columns.push_back(column);
  }
  for (const MemoryResult& r : results) {
    const Workload& w = r.task.workload;
    for (const LargeAllocation& a : r.largest) {
      table.add_row({size_of(r), w.model.context_length, mode_text(w), w.precision,
                     w.model.attention, static_cast<double>(a.bytes) / kMiB, a.count, a.kind,
                     a.shape, a.range, a.maker, a.source});
    }
  }
  table.notes = {
      "Of everything that was there at some time of the recorded pass; count: how many alike, "
      "over the whole pass and all blocks (layers.*). Made by: the outermost operator and the "
      "innermost one; source: the nearest function of ours on the stack."};
  return table;
}

// ---- One block

bool has_block(const MemoryResult& r) { return r.measured() && has_backward(r.task.workload); }

// The same forward pass under another mode says nothing new.
std::vector<const MemoryResult*> different_forwards(const std::vector<MemoryResult>& results) {
  std::vector<const MemoryResult*> chosen;
  std::set<std::string> seen;
  for (const MemoryResult& r : results) {
    Workload w = r.task.workload;
    w.mode = "step";
    if (has_block(r) && seen.insert(case_name(w)).second) chosen.push_back(&r);
  }
  return chosen;
}

std::vector<Cell> forward_cells(const MemoryResult& r) {
  const Workload& w = r.task.workload;
  return {size_of(r), w.model.context_length, w.precision, w.model.attention};
}

std::vector<measure::Column> forward_columns() {
  return {measure::text_column("size"), measure::integer_column("context"),
          measure::text_column("precision"), measure::text_column("attention")};
}

Table block_table(const std::vector<MemoryResult>& results) {
  Table table;
  table.title = "What one block keeps for backward, and its gradients";
  table.columns = forward_columns();
  table.columns.push_back(measure::integer_column("block"));
  table.columns.push_back(measure::number_column("saved", "MiB", 3));
  table.columns.push_back(measure::number_column("formula", "MiB", 3));
  table.columns.push_back(measure::number_column("saved / formula", "", 3));
  table.columns.push_back(measure::number_column("gradients", "MiB", 3));
  table.columns.push_back(measure::number_column("expected", "MiB", 3));
  for (const MemoryResult* r : different_forwards(results)) {
    const Workload& w = r->task.workload;
    if (w.recompute == "block") continue;  // keeps its input, or nothing
    const double saved = static_cast<double>(r->block_saved);
    const double formula = block_saved_bytes(w.model, pass_shape(w));
    const auto parameters = static_cast<double>(block_parameter_count(w.model));
    std::vector<Cell> row = forward_cells(*r);
    row.insert(row.end(), {Cell(r->block), mib(saved), mib(formula), Cell(saved / formula),
                           mib(r->block_gradients), mib(state_bytes(parameters).gradients)});
    table.add_row(std::move(row));
  }
  table.notes = {
      "Saved: allocations made in the block's forward pass that are there at the end of the whole "
      "forward pass; its output, which the next block keeps as its input, stands for its own "
      "input. Formula: block_saved_tensors() in model/cost.h. Expected: 4 bytes a parameter, "
      "4 C^2 + 3 C F + 2 C of them."};
  return table;
}

Table operator_table(const std::vector<MemoryResult>& results) {
  Table table;
  table.title = "Operators whose results one block keeps";
  table.columns = forward_columns();
  table.columns.push_back(measure::text_column("operator"));
  table.columns.push_back(measure::number_column("saved", "MiB", 3));
  table.columns.push_back(measure::number_column("share", "%", 1));
  for (const MemoryResult* r : different_forwards(results)) {
    for (size_t i = 0; i < std::min(kOperators, r->saved_by.size()); ++i) {
      const SavedByOperator& saved = r->saved_by[i];
      std::vector<Cell> row = forward_cells(*r);
      row.insert(row.end(), {Cell(saved.maker), mib(saved.bytes),
                             Cell(100 * static_cast<double>(saved.bytes) /
                                  static_cast<double>(r->block_saved))});
      table.add_row(std::move(row));
    }
  }
  table.notes = {str("The ", kOperators, " that keep most, of the block in the table above.")};
  return table;
}

// ---- The residual stream

Table residual_table(const std::vector<MemoryResult>& results) {
  Table table;
  table.title = "One tensor of the residual stream";
  table.columns = {measure::text_column("size"),
                   measure::integer_column("context"),
                   measure::integer_column("batch"),
                   measure::integer_column("d_model"),
                   measure::text_column("derivation"),
                   measure::number_column("formula", "MiB", 3),
                   measure::number_column("measured", "MiB", 3)};
  std::set<std::string> seen;
  for (const MemoryResult& r : results) {
    const Workload& w = r.task.workload;
    const int bytes = w.stream == "bf16" ? 2 : 4;
    const std::string derivation =
        str("B N C x ", bytes, " bytes = ", w.batch_size, " x ", w.model.context_length, " x ",
            w.model.d_model, " x ", bytes);
    if (!seen.insert(size_of(r) + derivation).second) continue;
    table.add_row({size_of(r), w.model.context_length, w.batch_size, w.model.d_model, derivation,
                   mib(residual_stream_bytes(w.model, pass_shape(w))), mib(r.residual_bytes)});
  }
  table.notes = {
      "Under autocast blocks add bfloat16 to it. The sum is bfloat16 on GPUs and float32 on CPUs, "
      "unless --stream says otherwise. Measured: the sum at the end of the block in the middle."};
  return table;
}

// ---- Pictures

// "step, bf16", and the attention where there are several.
std::vector<std::string> series_names(const std::vector<MemoryResult>& results) {
  std::set<std::string> attentions;
  for (const MemoryResult& r : results) attentions.insert(r.task.workload.model.attention);
  std::vector<std::string> names;
  for (const MemoryResult& r : results) {
    const Workload& w = r.task.workload;
    names.push_back(mode_text(w) + ", " + w.precision);
    if (attentions.size() > 1) names.back() += ", attention " + w.model.attention;
  }
  return names;
}

// Peaks over the context, a bar for each mode, precision and attention; one picture a size.
std::vector<NamedPicture> peak_pictures(const std::vector<MemoryResult>& results) {
  const std::vector<std::string> names = series_names(results);
  std::map<std::string, measure::Plot> plots;
  std::map<std::string, std::map<std::string, std::map<std::string, double>>> peaks;
  for (size_t i = 0; i < results.size(); ++i) {
    const MemoryResult& r = results[i];
    measure::Plot& plot = plots[size_of(r)];
    const std::string context = str("context ", r.task.workload.model.context_length);
    if (std::find(plot.categories.begin(), plot.categories.end(), context) ==
        plot.categories.end()) {
      plot.categories.push_back(context);
    }
    peaks[size_of(r)][names[i]][context] =
        r.measured() ? static_cast<double>(measure::total(r.at_peak)) / kMiB : -1;
  }
  std::vector<NamedPicture> pictures;
  for (auto& [size, plot] : plots) {
    plot.title = "Peak memory of " + size;
    plot.y.label = "MiB of tensors";
    for (const auto& [name, by_context] : peaks[size]) {
      measure::Series series;
      series.name = name;
      series.kind = measure::Series::Kind::kBars;
      for (const std::string& context : plot.categories) {
        const auto found = by_context.find(context);
        const bool there = found != by_context.end() && found->second >= 0;
        series.y.push_back(there ? found->second : std::numeric_limits<double>::quiet_NaN());
        series.labels.push_back(there ? with_commas(std::llround(found->second))
                                : found == by_context.end() ? ""
                                                            : "OOM");
      }
      plot.series.push_back(std::move(series));
    }
    std::string stem = size;
    std::replace_if(
        stem.begin(), stem.end(),
        [](char c) { return !(std::isalnum(static_cast<unsigned char>(c)) || c == '.'); }, '-');
    pictures.push_back({"peaks_" + stem, std::move(plot)});
  }
  return pictures;
}

// How far what was measured is from what the formulas say.
std::string verdict(const std::vector<MemoryResult>& results) {
  double lowest = std::numeric_limits<double>::infinity(), highest = 0;
  for (const MemoryResult* r : different_forwards(results)) {
    const Workload& w = r->task.workload;
    if (w.recompute == "block") continue;
    const double ratio =
        static_cast<double>(r->block_saved) / block_saved_bytes(w.model, pass_shape(w));
    lowest = std::min(lowest, ratio);
    highest = std::max(highest, ratio);
  }
  if (highest == 0) return "Verdict: no backward pass was measured whose blocks keep anything.";
  return str("Verdict: a block keeps ", fixed(lowest, 3), " to ", fixed(highest, 3),
             " times what the formulas say.");
}

}  // namespace

BenchReport memory_tables(const std::vector<MemoryResult>& results) {
  BenchReport report;
  report.table = peak_table(results);
  report.table.notes = peak_notes(results);
  report.table.notes.push_back(verdict(results));
  report.tables = {{"largest", largest_table(results)},
                   {"block", block_table(results)},
                   {"operators", operator_table(results)},
                   {"residual", residual_table(results)}};
  report.pictures = peak_pictures(results);
  return report;
}

}  // namespace flashstep::report
