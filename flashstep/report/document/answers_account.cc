// Answers that are computed and not measured: accounts of communication, memory and recomputation.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/combine.h"

namespace flashstep::report {
namespace {

// The table of an account by what its title begins with, among those with these columns.
TableRows account_rows(const Evidence& evidence, const std::string& title, const Columns& columns) {
  for (const TableRows& rows : evidence.tables("account", columns)) {
    if (rows.front().table->title.rfind(title, 0) != 0) continue;
    evidence.use(rows);
    return rows;
  }
  return {};
}

TableRows mesh_rows(const Evidence& evidence) {
  return account_rows(evidence, "Communication accounting", {"quantity", "value", "unit"});
}

// Of the first quantity that begins so.
std::string quantity(const TableRows& rows, const std::string& beginning) {
  for (const TableRow& row : rows) {
    if (row.text("quantity").rfind(beginning, 0) != 0) continue;
    const std::string unit = row.text("unit");
    return row.text("value") + (unit.empty() ? "" : " " + unit);
  }
  return "";
}

double quantity_value(const TableRows& rows, const std::string& name) {
  return rows.first({{"quantity", name}}).number("value");
}

measure::Table quantities(const TableRows& rows, const Columns& beginnings) {
  return list(rows.if_([&](const TableRow& row) {
    return std::any_of(beginnings.begin(), beginnings.end(), [&](const std::string& beginning) {
      return row.text("quantity").rfind(beginning, 0) == 0;
    });
  }),
              {"quantity", "value", "unit"});
}

// Where the tokens come from whose activations count; empty where the table has no such row.
std::string tokens_explained(const TableRows& rows) {
  const std::string beginning = "kept for backward by ", end = " tokens";
  const double least = quantity_value(rows, "least batch a device, axes at once");
  for (const TableRow& row : rows) {
    const std::string name = row.text("quantity");
    if (name.rfind(beginning, 0) != 0 || name.find(end) == name.npos) continue;
    const std::string tokens =
        name.substr(beginning.size(), name.size() - beginning.size() - end.size());
    return with_commas(std::llround(std::ceil(least))) == tokens
               ? str("The ", tokens,
                     " tokens are the least batch of one device that keeps the "
                     "mesh busy.")
               : str("The number of tokens, ", tokens, ", is chosen; the handout names none.");
  }
  return "";
}

Finding mesh_state(const Evidence& evidence) {
  const TableRows rows = mesh_rows(evidence);
  if (rows.empty()) return {};
  Finding finding = {
      .sentences = {str("The state takes ", quantity(rows, "state"), ": master weights ",
                        quantity(rows, "master"), ", gradients ", quantity(rows, "accumulated"),
                        " and AdamW's moments ", quantity(rows, "AdamW"), "; that is ",
                        quantity(rows, "accelerators"), " GPUs of 80 GB.")},
      .table = quantities(rows, {"parameters", "master", "accumulated", "AdamW", "state",
                                 "kept for backward", "accelerators"})};
  const std::string tokens = tokens_explained(rows);
  if (!tokens.empty()) finding.sentences.push_back(tokens);
  return finding;
}

Finding mesh_ranks(const Evidence& evidence) {
  const TableRows rows = mesh_rows(evidence);
  if (rows.empty()) return {};
  return {.sentences = {str("Divided between ", quantity(rows, "N_FSDP"),
                            " devices or more each holds less than 95 GB.")},
          .table = quantities(rows, {"N_FSDP", "state"})};
}

Finding mesh_batch(const Evidence& evidence) {
  const TableRows rows = mesh_rows(evidence);
  if (rows.empty()) return {};
  return {
      .sentences = {str(
          "From ", quantity(rows, "least batch a device, axes at once"), " a device on, ",
          quantity(rows, "least batch, axes at once"), " in all, if both axes send at once, and ",
          quantity(rows, "least batch, axes one after"), " if one sends after the other.")},
      .table = quantities(rows, {"C / W", "least batch", "most TP"})};
}

// What lowers the batch that is needed: more of it in tensor parallelism, if that is still hidden.
Finding mesh_tricks(const Evidence& evidence) {
  const TableRows rows = mesh_rows(evidence);
  const double once = quantity_value(rows, "least batch, axes at once"),
               turn = quantity_value(rows, "least batch, axes one after the other"),
               most = quantity_value(rows, "most TP ranks");
  if (std::isnan(once) || std::isnan(turn) || std::isnan(most)) return {};
  return {
      .sentences = {
          str("Sending along both axes at once instead of one after the other needs ",
              once < turn ? percent(1 - once / turn) + " fewer tokens" : "no fewer tokens", "."),
          str("Up to ", three_digits(most),
              " ranks of tensor parallelism stay hidden: more of them, and fewer of FSDP, "
              "lower the batch in proportion."),
          "Weights sent in fewer bytes, accumulated micro-batches and recomputed activations "
          "(whose batch is then larger) do the rest."}};
}

Finding ring(const Evidence& evidence) {
  const TableRows rows =
      account_rows(evidence, "All-reduce over links",
                   {"ranks", "size", "algorithm", "steps", "sent", "time", "x ring"});
  TableRows shown;
  bool as_derived = true;  // N - 1 steps of whole tensors beside 2 (N - 1) of N-ths
  for (const TableRows& by_ranks : rows.by({"ranks"})) {
    const auto both = pairs(by_ranks, {{"algorithm", "whole tensors (alternate)"}},
                            {{"algorithm", "ring"}}, {"size"});
    if (both.empty()) continue;
    const auto& [whole, of_ring] = both.back();
    const double n = whole.number("ranks");
    as_derived &= whole.number("steps") == n - 1 && of_ring.number("steps") == 2 * (n - 1) &&
                  std::abs(whole.number("sent") / of_ring.number("sent") / (n / 2) - 1) < 0.005;
    shown.add(whole);
    shown.add(of_ring);
  }
  if (shown.empty()) return {};
  const TableRow& last = shown[shown.size() - 2];
  Finding finding = {
      .sentences = {str("With ", last.text("ranks"), " ranks and ", last.text("size"),
                        " MB it takes ", milliseconds(last.number("time")), " in ",
                        last.text("steps"), " steps, ", fixed(last.number("x ring"), 2),
                        " times as long as the ring.")},
      .table = list(shown, {"ranks", "size", "algorithm", "steps", "sent", "time", "x ring"})};
  if (as_derived)
    finding.sentences.emplace_back(
        "Every rank passes on whole tensors, N - 1 times, where the "
        "ring sends N-ths of one 2 (N - 1) times: N / 2 times the bytes "
        "in half as many messages.");
  return finding;
}

// The rows of the strategies whose name begins so.
AnswerFunction bound_of(const std::string& strategy) {
  return [strategy](const Evidence& evidence) -> Finding {
    const TableRows rows =
        account_rows(evidence, "One feed-forward layer",
                     {"strategy", "pass", "compute", "weights sent", "bound by", "most devices",
                      "activations sent"})
            .if_([&](const TableRow& row) {
              const std::string name = row.text("strategy");
              return name == strategy || (strategy == "FSDP + TP" && name.rfind("FSDP ", 0) == 0);
            });
    if (rows.empty()) return {};
    Finding finding = {.table = list(rows, {"strategy", "pass", "compute", "weights sent",
                                            "activations sent", "bound by", "most devices"})};
    for (const TableRow& row : rows) {
      const double most = row.number("most devices");
      if (finding.sentences.size() == 3) break;
      const bool mesh = strategy == "FSDP + TP";
      finding.sentences.push_back(
          str(mesh ? row.text("strategy") + ": the " : "The ", row.text("pass"),
              " pass is bound by ", row.text("bound by"),
              std::isfinite(most)
                  ? str("; it stays bound by compute up to ", three_digits(most), " devices.")
                  : std::string(" and sends nothing.")));
    }
    return finding;
  };
}

Finding sharding_account(const Evidence& evidence) {
  const TableRows rows = account_rows(evidence, "State and traffic",
                                      {"ranks", "strategy", "in all", "of DDP", "gathered"});
  const auto both = pairs(rows, {{"strategy", "ZeRO-3 (FSDP)"}}, {{"strategy", "DDP"}}, {"ranks"});
  if (both.empty()) return {};
  const auto& [full, plain] = both.back();
  const double saved = plain.number("in all") - full.number("in all");
  return {.sentences = {str("With ", full.text("ranks"), " ranks each keeps ", full.text("in all"),
                            " GB instead of ", plain.text("in all"), " GB, ",
                            saved > 0 ? fixed(saved, 2) + " GB less" : "no less", "; of it ",
                            full.text("gathered"), " GB are layers that are whole for a moment.")},
          .table = list(rows, {"ranks", "strategy", "parameters", "gradients", "moments",
                               "gathered", "in all", "of DDP"})};
}

TableRows recompute_rows(const Evidence& evidence) {
  return account_rows(evidence, "Recomputation",
                      {"scheme", "inputs kept", "peak", "block passes", "step"});
}

// What the numbers of a scheme show of its growth with n blocks; empty where they show another.
std::string growth_of_scheme(const TableRow& row, double n) {
  const double inputs = row.number("inputs kept"), passes = row.number("block passes");
  const double halvings = std::ceil(std::log2(n));
  if (row.text("scheme") == "from the start each time" && inputs <= 1 && passes == n * (n + 1) / 2)
    return ", O(1) memory for O(n^2) passes";
  if (row.text("scheme") == "halves of halves" && inputs <= halvings + 1 &&
      passes <= n * (1 + halvings))
    return ", O(log n) memory for O(n log n) passes";
  return "";
}

Finding recompute_schemes(const Evidence& evidence) {
  const TableRows rows = recompute_rows(evidence);
  const TableRow all = rows.first({{"scheme", "keep everything"}}), least = rows.least("peak");
  if (!all) return {};
  const double n = all.number("block passes");
  Finding finding = {
      .sentences = {str(
          "The least memory takes the scheme \"", least.text("scheme"), "\": ", least.text("peak"),
          " GiB instead of ", all.text("peak"), " GiB", growth_of_scheme(least, n), ", ",
          fixed(least.number("block passes") / n, 1),
          " times the passes through a block and a step ", least.text("step"), " times as long.")},
      .table =
          list(rows, {"scheme", "inputs kept", "blocks kept", "peak", "block passes", "step"})};
  const TableRow halves = rows.first({{"scheme", "halves of halves"}});
  if (halves && halves.index != least.index)
    finding.sentences.push_back(str("Halves of halves need ", halves.text("peak"), " GiB",
                                    growth_of_scheme(halves, n), ", and a step ",
                                    halves.text("step"), " times as long."));
  return finding;
}

Finding recompute_groups(const Evidence& evidence) {
  const TableRows rows = recompute_rows(evidence);
  const TableRows groups =
      rows.if_([](const TableRow& row) { return row.text("scheme").rfind("groups", 0) == 0; });
  const TableRow all = rows.first({{"scheme", "keep everything"}});
  TableRow best;
  for (const TableRow& row : groups) {
    if (row.text("scheme").find("(best)") != std::string::npos) best = row;
  }
  if (!best || !all) return {};
  bool is_least = true;
  for (const TableRow& row : groups)
    is_least &= row.index == best.index || row.number("peak") >= best.number("peak");
  return {
      .sentences = {str("By account ",
                        best.text("scheme").substr(0, best.text("scheme").find(" (")),
                        best.text("scheme").find(" 1 ") == std::string::npos ? " blocks" : " block",
                        " peak at ", best.text("peak"), " GiB instead of ", all.text("peak"),
                        " GiB, for a step ", best.text("step"), " times as long."),
                    is_least ? "Larger and smaller groups peak higher."
                             : "It is NOT the lowest peak of the groups."},
      .table =
          list(groups, {"scheme", "inputs kept", "blocks kept", "peak", "block passes", "step"})};
}

}  // namespace

void add_account_answers(Answers& answers) {
  answers["mesh_state"] = mesh_state;
  answers["mesh_ranks"] = mesh_ranks;
  answers["mesh_batch"] = mesh_batch;
  answers["mesh_tricks"] = mesh_tricks;
  answers["ring"] = ring;
  answers["bound_dp"] = bound_of("DP");
  answers["bound_fsdp"] = bound_of("FSDP");
  answers["bound_tp"] = bound_of("TP");
  answers["bound_fsdp_tp"] = bound_of("FSDP + TP");
  answers["sharding_account"] = sharding_account;
  answers["recompute_schemes"] = recompute_schemes;
  answers["recompute_groups"] = recompute_groups;
}

}  // namespace flashstep::report
