// Tables, sentences and pictures of `flashstep memory`.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/workload.h"
#include "flashstep/model/cost.h"
#include "flashstep/profile/memory.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

using measure::number_column;
using measure::text_column;

constexpr int64_t kOperators = 5;  // a case, as the handout asks

bool is_pass(const Record& r) { return r.implementation.empty(); }

// Of bytes; nothing where there are none.
SchemaColumn mebibytes(const std::string& name, int digits, const std::string& fact_name = "") {
  const std::string bytes = fact_name.empty() ? name : fact_name;
  return {number_column(name, "MiB", digits), finite([bytes](const Record& r) {
            return r.number(bytes) > 0 ? r.number(bytes) / kMiB : NAN;
          })};
}
SchemaColumn text_fact(const std::string& name) { return {text_column(name), fact(name)}; }

// ---- Tables

Schema peak_schema(const Records&) {
  Schema schema = {text_key("size"), integer_key("context"), integer_key("batch"),
                   text_key("mode"), text_key("precision"),  text_key("attention")};
  const SchemaColumn peak = mebibytes("peak", 2);
  schema.push_back({peak.column, or_word(peak.cell)});
  for (int kind = 0; kind < measure::kMemoryKinds; ++kind)
    schema.push_back(mebibytes(measure::name_of(static_cast<measure::MemoryKind>(kind)), 2));
  return schema + Schema{text_fact("peak in"),          mebibytes("forward peak", 2),
                         mebibytes("backward peak", 2), mebibytes("optimizer peak", 2),
                         mebibytes("formulas", 2),      mebibytes("on the device", 1)};
}

Schema forward_schema() {
  return {text_key("size"), integer_key("context"), text_key("precision"), text_key("attention")};
}

// The first record of each that `name` names alike.
Records first_of_each(const Records& records, const NameOf& name) {
  Records firsts;
  for (const auto& [value, members] : records.grouped(name)) firsts.add(members.all().front());
  return firsts;
}

// Passes with a backward; the same forward pass under another mode says nothing new.
Records different_forwards(const Records& records) {
  return first_of_each(records.where([](const Record& r) {
    return is_pass(r) && r.outcome.measured() && !r.text("forward name").empty();
  }),
                       text_of("forward name"));
}

// A recomputed block keeps its input, or nothing.
Records whole_blocks(const Records& records) {
  return different_forwards(records).where(
      [](const Record& r) { return r.facts.contains("saved formula"); });
}

double saved_ratio(const Record& r) { return r.number("saved") / r.number("saved formula"); }

measure::Table block_table(const Records& records) {
  measure::Table table =
      fill("What one block keeps for backward, and its gradients",
           forward_schema() + Schema{{measure::integer_column("block"), fact("block")},
                                     mebibytes("saved", 3),
                                     mebibytes("formula", 3, "saved formula"),
                                     {number_column("saved / formula", "", 3), finite(saved_ratio)},
                                     mebibytes("gradients", 3, "block gradients"),
                                     mebibytes("expected", 3, "expected gradients")},
           whole_blocks(records));
  table.notes = {note("memory block")};
  return table;
}

measure::Table operator_table(const Records& records) {
  Records lines;
  for (const Record& pass : different_forwards(records)) {
    for (const Record& r : records) {
      if (r.implementation == "saved" && r.key == pass.key && r.number("place") < kOperators)
        lines.add(r);
    }
  }
  measure::Table table =
      fill("Operators whose results one block keeps",
           forward_schema() + Schema{text_fact("operator"),
                                     mebibytes("saved", 3),
                                     {number_column("share", "%", 1), fact("share")}},
           lines);
  table.notes = {str("The ", kOperators, " that keep most, of the block in the table above.")};
  return table;
}

measure::Table residual_table(const Records& records) {
  measure::Table table = fill("One tensor of the residual stream",
                              {text_key("size"),
                               integer_key("context"),
                               integer_key("batch"),
                               {measure::integer_column("d_model"), fact("d_model")},
                               text_fact("derivation"),
                               mebibytes("formula", 3, "residual formula"),
                               mebibytes("measured", 3, "residual")},
                              first_of_each(records.where(is_pass), [](const Record& r) {
                                return r.text("size") + r.text("derivation");
                              }));
  table.notes = {note("memory residual")};
  return table;
}

std::vector<NamedTable> memory_tables(const Records& records) {
  measure::Table largest =
      fill("Largest allocations",
           Schema{text_key("size"), integer_key("context"), text_key("mode"), text_key("precision"),
                  text_key("attention")} +
               allocation_schema(/*with_shape=*/true),
           records.where([](const Record& r) { return r.implementation == "allocation"; }));
  largest.notes = {note("memory largest")};
  return {{"largest", std::move(largest)},
          {"block", block_table(records)},
          {"operators", operator_table(records)},
          {"residual", residual_table(records)}};
}

// ---- Pictures, sentences

// Peaks over the context, a bar for each mode, precision and, of several, attention; one picture a
// size.
std::vector<NamedPicture> peak_pictures(const Records& records) {
  const Records passes = records.where(is_pass);
  const bool several = passes.distinct(text_of("attention")).size() > 1;
  std::vector<NamedPicture> pictures;
  for (const auto& [size, members] : passes.grouped(text_of("size"))) {
    measure::Plot plot = bars(
        members, [](const Record& r) { return str("context ", std::llround(r.number("context"))); },
        [&](const Record& r) {
          return r.text("mode") + ", " + r.text("precision") +
                 (several ? ", attention " + r.text("attention") : "");
        },
        [](const Record& r) { return r.number("peak") / kMiB; },
        [](const Record& r) {
          return r.outcome.measured() ? with_commas(std::llround(r.number("peak") / kMiB))
                                      : r.outcome.word();
        });
    plot.title = "Peak memory of " + size;
    plot.y.label = "MiB of tensors";
    pictures.push_back({"peaks_" + without_slashes(size), std::move(plot)});
  }
  return pictures;
}

// How far what was measured is from what the formulas say.
std::vector<std::string> saved_beside_formulas(const Records& records) {
  std::vector<double> ratios;
  for (const Record& r : whole_blocks(records)) ratios.push_back(saved_ratio(r));
  if (ratios.empty()) return {"Verdict: no backward pass was measured whose blocks keep anything."};
  const auto [lowest, highest] = std::ranges::minmax(ratios);
  return {str("Verdict: a block keeps ", fixed(lowest, 3), " to ", fixed(highest, 3),
              " times what the formulas say.")};
}

}  // namespace

Schema allocation_schema(bool with_shape) {
  Schema schema = {mebibytes("bytes", 3), {measure::integer_column("count"), fact("count")}};
  for (const char* name : {"kind", "shape", "range", "made by", "source"}) {
    if (with_shape || name != std::string("shape")) schema.push_back(text_fact(name));
  }
  return schema;
}

void describe_records(const Workload& w, int64_t whole_layers, std::vector<Record>& records) {
  Workload whole = w;
  if (whole_layers > 0) whole.model.num_layers = whole_layers;
  const std::string size =
      model_name(whole.model) +
      (whole_layers > 0 ? str(" (", w.model.num_layers, " of ", whole_layers, " layers)") : "");
  for (Record& r : records) {
    r.key = {{"size", size},
             {"context", w.model.context_length},
             {"batch", w.batch_size},
             {"mode", mode_text(w)},
             {"precision", w.precision},
             {"attention", w.model.attention}};
    r.what = (whole_layers > 0 ? size + ": " : "") + describe(w);
  }
  auto& facts = records.front().facts;
  facts["formulas"] = needed_bytes(w).about;
  const int bytes = w.stream == "bf16" ? 2 : 4;
  facts["d_model"] = w.model.d_model;
  facts["derivation"] = str("B N C x ", bytes, " bytes = ", w.batch_size, " x ",
                            w.model.context_length, " x ", w.model.d_model, " x ", bytes);
  facts["residual formula"] = residual_stream_bytes(w.model, pass_shape(w));
  if (!has_backward(w)) return;
  Workload step = w;
  step.mode = "step";
  facts["forward name"] = case_name(step);
  if (w.recompute != "block") facts["saved formula"] = block_saved_bytes(w.model, pass_shape(w));
  facts["expected gradients"] =
      state_bytes(static_cast<double>(block_parameter_count(w.model))).gradients;
}

Benchmark memory_benchmark(int64_t warmup) {
  Benchmark benchmark;
  benchmark.command = "memory";
  benchmark.title = "Peak memory of one pass, by what it holds";
  benchmark.schema = peak_schema;
  benchmark.has_row = [](const Record& r, const Records&) { return is_pass(r); };
  benchmark.how_to_read = {note("memory")};
  benchmark.how = str("One pass after ", warmup);
  benchmark.findings = saved_beside_formulas;
  benchmark.pictures = peak_pictures;
  benchmark.tables = memory_tables;
  return benchmark;
}

}  // namespace flashstep::tools
