// Answers about the memory of a pass.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/combine.h"

namespace flashstep::report {
namespace {

const Columns kPass = {"size", "context", "mode", "precision"};
constexpr double kNearlyAll = 0.9;  // of a peak: then nothing else can change it much

TableRows peak_rows(const Evidence& evidence) {
  return evidence.rows("memory", {"size", "context", "mode", "precision", "peak", "peak in"});
}

std::string pass_case(const TableRow& row) {
  return str(row.text("size"), ", context ", row.text("context"), ", ", row.text("precision"));
}

// Of several kinds at a peak; an empty cell holds nothing.
double held(const TableRow& row, const Columns& kinds) {
  double all = 0;
  for (const std::string& kind : kinds) all += std::fmax(row.number(kind), 0);
  return all;
}

// "optimizer state (25.4 GiB)": what holds more of a peak than anything else does.
std::string largest_holder(const TableRow& row) {
  std::string most;
  for (const char* kind : {"parameters", "gradients", "optimizer state", "activations",
                           "temporaries", "communication"}) {
    if (held(row, {kind}) > held(row, {most})) most = kind;
  }
  return most.empty() ? "" : most + " (" + memory_words(held(row, {most})) + ")";
}

// "backward/layers.31/feed-forward/swiglu" -> "backward (layer 31, swiglu)"
std::string place_of_peak(const std::string& path) {
  const size_t first = path.find('/'), last = path.rfind('/');
  if (first == std::string::npos) return path;
  std::string layer;
  if (const size_t at = path.find("layers."); at != std::string::npos) {
    const size_t begin = at + 7;
    layer = "layer " + path.substr(begin, path.find('/', begin) - begin) + ", ";
  }
  return path.substr(0, first) + " (" + layer + path.substr(last + 1) + ")";
}

std::string peak_sentence(const TableRow& row, const char* what) {
  const std::string holder = largest_holder(row);
  return str(what, " of ", pass_case(row), " peaks at ", memory_words(row.number("peak")), " in ",
             place_of_peak(row.text("peak in")),
             holder.empty() ? "" : "; the largest part is " + holder, ".");
}

Finding memory_timeline(const Evidence& evidence) {
  const TableRows rows = peak_rows(evidence).with({"peak"});
  const auto both =
      pairs(rows, {{"mode", "forward"}}, {{"mode", "step"}}, {"size", "context", "precision"});
  if (both.empty()) return {};
  const std::string precision = both.front().a.text("precision");
  const RowPair& last = *std::find_if(both.rbegin(), both.rend(), [&](const RowPair& pair) {
    return pair.a.text("precision") == precision;
  });
  return {.sentences = {peak_sentence(last.b, "A training step"),
                        peak_sentence(last.a, "The forward pass alone"),
                        str("A step peaks ", span_of(ratios(both, "peak"), 1),
                            " times as high as the forward pass alone.")},
          .picture = {"memory_timeline", "_step_", precision}};
}

Finding memory_peaks(const Evidence& evidence) {
  const TableRows rows = peak_rows(evidence), full = rows.where({{"precision", "fp32"}});
  const TableRows known = (full.empty() ? rows : full).with({"peak"});
  Finding finding;
  for (const TableRows& mode : known.by({"mode"})) {
    const TableRow least = mode.least("peak"), most = mode.most("peak");
    finding.sentences.push_back(str(
        mode.front().text("mode") == "forward" ? "The forward pass" : "A training step",
        " peaks at ", memory_words(least.number("peak")), " (", pass_case(least), ")",
        mode.size() > 1 ? str(" to ", memory_words(most.number("peak")), " (", pass_case(most), ")")
                        : "",
        "."));
  }
  const size_t no_room = rows.where({{"peak", "OOM"}}).size();
  if (no_room > 0 && finding)
    finding.sentences.push_back(count_of(no_room, "case") + " did not fit.");
  finding.table = list(full.empty() ? rows : full,
                       {"size", "context", "mode", "precision", "peak", "parameters", "gradients",
                        "optimizer state", "activations", "temporaries"});
  finding.picture = {"memory_peaks"};
  return finding;
}

// Why peaks rise or fall from fp32 to bf16, where what the passes make accounts for most of it.
std::string reason_of_change(const std::vector<RowPair>& both) {
  const Columns made = {"activations", "temporaries"},
                state = {"parameters", "gradients", "optimizer state"};
  double risen = 0, more = 0, copies = 0, fallen = 0, less = 0;
  bool all_state = true;
  for (const auto& [half, full] : both) {
    const double peaks = half.number("peak") - full.number("peak");
    const double passes = held(half, made) - held(full, made);
    const int order = compare_measured(half.number("peak"), full.number("peak"));
    if (order > 0) risen += peaks, more += passes, copies = held(half, {"parameters"}) / 2;
    if (order < 0) fallen -= peaks, less -= passes;
    all_state &= order != 0 || held(half, state) >= kNearlyAll * half.number("peak");
  }
  if (risen > 0 && more > risen / 2 && copies > 0) {
    return str(
        "Where it rises, autocast keeps 16-bit copies of the weights beside the float32 "
        "ones for the whole pass: up to ",
        memory_words(copies), " more.");
  }
  if (fallen > 0 && less > fallen / 2)
    return "Where it falls, 16-bit activations save more than autocast's copies of weights take.";
  return risen == 0 && fallen == 0 && all_state
             ? "Nearly all of both are parameters, gradients and AdamW's state, which stay float32."
             : "";
}

Finding memory_mixed(const Evidence& evidence) {
  const TableRows rows = peak_rows(evidence).with({"peak"});
  const auto both =
      pairs(rows, {{"precision", "bf16"}}, {{"precision", "fp32"}}, {"size", "context", "mode"});
  if (both.empty()) return {};
  Tally tally;
  measure::Table table;
  table.columns = {measure::text_column("size"),
                   measure::integer_column("context"),
                   measure::text_column("mode"),
                   measure::number_column("fp32 peak", "GiB", 2),
                   measure::number_column("bf16 peak", "GiB", 2),
                   measure::number_column("change", "%", 1)};
  for (const auto& [half, full] : both) {
    const double to = half.number("peak"), from = full.number("peak");
    tally.add(to, from);
    table.add_row({full.text("size"), *full.cell("context"), full.text("mode"), from / 1024,
                   to / 1024, 100 * (to / from - 1)});
  }
  const RowPair& last = both.back();
  Finding finding = {
      .sentences = {str("With bf16 the peak is ",
                        tally.words("lower", "the same within 2 %", "higher"), ": ",
                        memory_words(last.b.number("peak")), " in fp32 becomes ",
                        memory_words(last.a.number("peak")), " (", last.a.text("size"),
                        ", context ", last.a.text("context"), ", ", last.a.text("mode"), ").")},
      .table = table};
  const std::string reason = reason_of_change(both);
  if (!reason.empty()) finding.sentences.push_back(reason);
  return finding;
}

Finding memory_residual(const Evidence& evidence) {
  const TableRows rows =
      evidence.rows("memory", {"size", "context", "derivation", "formula", "measured"});
  if (rows.empty()) return {};
  const TableRow last = rows.back();
  const TableRows measured = rows.with({"measured"});
  return {.sentences = {str(
              "One tensor of ", last.text("size"), " at context ", last.text("context"), " takes ",
              last.text("derivation"), " = ", three_digits(last.number("formula")), " MiB",
              measured.empty() ? "."
                               : "; what was measured is " +
                                     against_formula(measured, "measured", "formula") + ".")},
          .table = list(rows, {"size", "context", "batch", "d_model", "formula", "measured"})};
}

// Of the last forward pass of the table: what was there before it, and what it makes itself.
Finding memory_largest(const Evidence& evidence) {
  const TableRows rows =
      evidence
          .rows("memory", {"size", "context", "mode", "precision", "bytes", "count", "kind",
                           "shape", "range", "made by", "source"})
          .where({{"mode", "forward"}});
  if (rows.empty()) return {};
  const TableRows pass =
      rows.where({{"precision", rows.front().text("precision")}}).by(kPass).back();
  const TableRow before = pass.first({{"kind", "parameters"}});
  const TableRow made =
      pass.if_([](const TableRow& row) { return row.text("range").rfind("forward", 0) == 0; })
          .most("bytes");
  Finding finding;
  const auto allocation = [](const char* what, const TableRow& row) {
    const std::string where = row.text("range");
    return str(what, three_digits(row.number("bytes")), " MiB, ", row.text("count"),
               " times: ", row.text("kind"), " of shape ", row.text("shape"), ", made by `",
               row.text("made by"), "`",
               where.empty() ? "" : ", in " + where.substr(where.rfind('/') + 1), ".");
  };
  if (made) finding.sentences.push_back(allocation("The largest that the pass makes are ", made));
  if (before)
    finding.sentences.push_back(allocation("The largest that were there before are ", before));
  finding.table = list(pass, {"bytes", "count", "kind", "shape", "made by"}, 6);
  return finding;
}

Finding memory_block(const Evidence& evidence) {
  const TableRows rows = evidence
                             .rows("memory", {"size", "context", "precision", "attention", "block",
                                              "saved", "formula", "gradients", "expected"})
                             .with({"saved"});
  if (rows.empty()) return {};
  const TableRows operators = evidence.rows(
      "memory", {"size", "context", "precision", "attention", "operator", "saved", "share"});
  const TableRow last = rows.where({{"precision", rows.front().text("precision")}}).back();
  const TableRows gradients = rows.with({"gradients", "expected"});
  const TableRows of_last = operators.where({{"size", last.text("size")},
                                             {"context", last.text("context")},
                                             {"precision", last.text("precision")}});
  Finding finding = {
      .sentences = {str("A block of ", pass_case(last), " keeps ",
                        three_digits(last.number("saved")), " MiB for backward; that is ",
                        against_formula(rows, "saved", "formula"), ".")},
      .table = list(of_last, {"operator", "saved", "share"})};
  if (!gradients.empty()) {
    finding.sentences.push_back(str("Its gradients take ", three_digits(last.number("gradients")),
                                    " MiB, ", against_formula(gradients, "gradients", "expected"),
                                    "."));
  }
  if (!of_last.empty()) {
    finding.sentences.push_back(str("Most is kept by `", of_last.front().text("operator"), "`, ",
                                    percent(of_last.front().number("share") / 100), "."));
  }
  return finding;
}

}  // namespace

void add_memory_answers(Answers& answers) {
  answers["memory_timeline"] = memory_timeline;
  answers["memory_peaks"] = memory_peaks;
  answers["memory_mixed"] = memory_mixed;
  answers["memory_residual"] = memory_residual;
  answers["memory_largest"] = memory_largest;
  answers["memory_block"] = memory_block;
}

}  // namespace flashstep::report
