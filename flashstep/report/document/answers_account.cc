// Answers that are computed and not measured: accounts of communication, memory and recomputation.
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kQuantities = {"quantity", "value", "unit"};

// The table of an account by what its title begins with, among those with these columns.
TableView account(const Evidence& evidence, const std::string& title,
                  const std::vector<std::string>& columns) {
  for (const TableView& table : evidence.tables("account", columns)) {
    if (table.table().title.rfind(title, 0) != 0) continue;
    evidence.use(table);
    return table;
  }
  return {};
}

// "state in all: 3,328.6 GB", of all rows whose quantity begins so.
Sentences quantities(const TableView& table, const std::vector<std::string>& beginnings) {
  Sentences parts;
  for (const std::string& beginning : beginnings) {
    for (size_t row = 0; row < table.rows(); ++row) {
      const std::string name = table.text(row, "quantity");
      if (name.rfind(beginning, 0) != 0) continue;
      const std::string unit = table.text(row, "unit");
      parts.push_back(name + " " + table.text(row, "value") + (unit.empty() ? "" : " " + unit));
    }
  }
  return parts;
}

TableView mesh(const Evidence& evidence) {
  return account(evidence, "Communication accounting", kQuantities);
}

Sentences answer_of(const TableView& table, const std::vector<std::string>& beginnings) {
  const Sentences parts = quantities(table, beginnings);
  if (parts.empty()) return {};
  return {join(parts, "; ") + ".", "The derivation stands below the table."};
}

// Where the tokens come from whose activations count; empty where the table has no such row.
std::string tokens_explained(const TableView& table) {
  const std::string beginning = "kept for backward by ", end = " tokens";
  const auto least = table.first({{"quantity", "least batch a device, axes at once"}});
  for (size_t row = 0; row < table.rows(); ++row) {
    const std::string name = table.text(row, "quantity");
    if (name.rfind(beginning, 0) != 0 || name.find(end) == name.npos) continue;
    const std::string tokens =
        name.substr(beginning.size(), name.size() - beginning.size() - end.size());
    if (least && with_commas(std::llround(std::ceil(table.number(*least, "value")))) == tokens) {
      return str("The ", tokens, " tokens are the least batch of one device in part (c), ",
                 table.text(*least, "value"), ", rounded up.");
    }
    return str("The number of tokens, ", tokens, ", is chosen; the handout names none.");
  }
  return "";
}

Sentences answer_mesh_state(const Evidence& evidence) {
  const TableView table = mesh(evidence);
  Sentences sentences = answer_of(table, {"parameters", "master", "accumulated", "AdamW", "state",
                                          "kept for backward", "accelerators"});
  const std::string tokens = tokens_explained(table);
  if (!sentences.empty() && !tokens.empty()) sentences.insert(sentences.begin() + 1, tokens);
  return sentences;
}

Sentences answer_mesh_ranks(const Evidence& evidence) {
  return answer_of(mesh(evidence), {"N_FSDP"});
}

Sentences answer_mesh_batch(const Evidence& evidence) {
  return answer_of(mesh(evidence), {"C / W", "least batch", "most TP"});
}

// What lowers the batch that is needed: more of it in tensor parallelism, if that is still hidden.
Sentences answer_mesh_tricks(const Evidence& evidence) {
  const TableView table = mesh(evidence);
  const auto most = table.first({{"quantity", "most TP ranks"}});
  const auto at_once = table.first({{"quantity", "least batch, axes at once"}});
  const auto in_turn = table.first({{"quantity", "least batch, axes one after the other"}});
  if (!most || !at_once || !in_turn) return {};
  const double once = table.number(*at_once, "value"), turn = table.number(*in_turn, "value");
  return {
      str("Sending along both axes at once instead of one after the other needs ",
          once < turn ? percent(1 - once / turn) + " fewer tokens" : std::string("no fewer tokens"),
          ". Up to ", three_digits(table.number(*most, "value")),
          " ranks of tensor parallelism stay hidden: more of them, and fewer of FSDP, lower the "
          "batch in proportion. Weights sent in fewer bytes, accumulated micro-batches and "
          "recomputed activations (whose batch is then larger) do the rest.")};
}

const std::vector<std::string> kRing = {"ranks", "size", "algorithm", "steps",
                                        "sent",  "time", "x ring"};

// Whether these are N - 1 steps of whole tensors beside 2 (N - 1) of N-ths.
bool as_derived(double ranks, double steps, double ring_steps, double bytes) {
  return steps == ranks - 1 && ring_steps == 2 * (ranks - 1) &&
         std::abs(bytes / (ranks / 2) - 1) < 0.005;
}

Sentences answer_ring(const Evidence& evidence) {
  const TableView table = account(evidence, "All-reduce over links", kRing);
  Sentences sentences;
  bool all_as_derived = true;
  for (const std::string& ranks : table.distinct("ranks")) {
    const auto rows = table.where({{"ranks", ranks}, {"algorithm", "whole tensors (alternate)"}});
    if (rows.empty()) continue;
    const size_t row = rows.back();
    const auto ring =
        table.first({{"ranks", ranks}, {"size", table.text(row, "size")}, {"algorithm", "ring"}});
    if (!ring) continue;
    const double ratio = table.number(row, "x ring");
    const std::string verdict = std::abs(ratio - 1) < 0.005 ? "as long as the ring"
                                : ratio > 1 ? fixed(ratio, 2) + " times as long as the ring"
                                            : fixed(ratio, 2) + " of the ring's time";
    const double bytes = table.number(row, "sent") / table.number(*ring, "sent");
    all_as_derived &= as_derived(table.number(row, "ranks"), table.number(row, "steps"),
                                 table.number(*ring, "steps"), bytes);
    sentences.push_back(
        str(ranks, " ranks, ", table.text(row, "size"), " MB: ", table.text(row, "steps"),
            table.number(row, "steps") == 1 ? " step" : " steps", " where the ring takes ",
            table.text(*ring, "steps"), ", ", table.text(row, "sent"), " MB sent by a rank, ",
            fixed(bytes, 2), " times the ring's, ", milliseconds(table.number(row, "time")), ", ",
            verdict, "."));
  }
  if (!sentences.empty() && all_as_derived) {
    sentences.emplace_back(
        "Every rank passes on whole tensors, N - 1 times, where the ring sends N-ths of one 2 (N - "
        "1) times: N / 2 times the bytes in half as many messages.");
  }
  return sentences;
}

const std::vector<std::string> kBounds = {
    "strategy", "pass", "compute", "weights sent", "bound by", "most devices", "activations sent"};

// Each row of the strategies whose name begins so.
Sentences bounds_of(const Evidence& evidence, const std::string& strategy) {
  const TableView table = account(evidence, "One feed-forward layer", kBounds);
  Sentences sentences;
  for (size_t row = 0; row < table.rows(); ++row) {
    const std::string name = table.text(row, "strategy");
    const bool is_one =
        name == strategy || (strategy == "FSDP + TP" && name.rfind("FSDP ", 0) == 0);
    if (!is_one) continue;
    const double most = table.number(row, "most devices");
    sentences.push_back(str(name, ", ", table.text(row, "pass"), ": compute ",
                            milliseconds(table.number(row, "compute")), ", weights sent ",
                            milliseconds(table.number(row, "weights sent")), ", activations sent ",
                            milliseconds(table.number(row, "activations sent")), ": bound by ",
                            table.text(row, "bound by"),
                            std::isfinite(most)
                                ? str("; compute-bound up to ", three_digits(most), " devices")
                                : std::string("; it sends nothing"),
                            "."));
  }
  if (!sentences.empty())
    sentences.emplace_back("The inequalities stand below the table, with their derivation.");
  return sentences;
}

Sentences answer_dp(const Evidence& evidence) { return bounds_of(evidence, "DP"); }
Sentences answer_fsdp(const Evidence& evidence) { return bounds_of(evidence, "FSDP"); }
Sentences answer_tp(const Evidence& evidence) { return bounds_of(evidence, "TP"); }
Sentences answer_fsdp_tp(const Evidence& evidence) { return bounds_of(evidence, "FSDP + TP"); }

Sentences answer_fsdp_memory(const Evidence& evidence) {
  const TableView table =
      account(evidence, "State and traffic", {"ranks", "strategy", "in all", "of DDP", "gathered"});
  Sentences sentences;
  for (const size_t row : table.where({{"strategy", "ZeRO-3 (FSDP)"}})) {
    const auto plain = table.first({{"ranks", table.text(row, "ranks")}, {"strategy", "DDP"}});
    if (!plain) continue;
    const double saved = table.number(*plain, "in all") - table.number(row, "in all");
    sentences.push_back(str(table.table().title, ": with ", table.text(row, "ranks"),
                            " ranks each keeps ", table.text(row, "in all"), " GB instead of ",
                            table.text(*plain, "in all"), " GB, ",
                            saved > 0 ? fixed(saved, 2) + " GB less" : std::string("no less"),
                            ". What it keeps includes ", table.text(row, "gathered"),
                            " GB of layers that are whole for a moment."));
  }
  return sentences;
}

const std::vector<std::string> kSchemes = {"scheme", "inputs kept", "peak", "block passes", "step"};

TableView recompute(const Evidence& evidence) {
  return account(evidence, "Recomputation", kSchemes);
}

// What the numbers of a scheme show of its growth with n blocks; empty where they show another.
std::string growth_of(const std::string& scheme, double n, double inputs, double passes) {
  const double halvings = std::ceil(std::log2(n));
  if (scheme == "from the start each time" && inputs <= 1 && passes == n * (n + 1) / 2)
    return ": O(1) memory for n (n + 1) / 2 = O(n^2) passes";
  if (scheme == "halves of halves" && inputs <= halvings + 1 && passes <= n * (1 + halvings))
    return ": no more than 1 + log2 n inputs and n (1 + log2 n) passes, O(log n) and O(n log n)";
  return "";
}

Sentences answer_recursive(const Evidence& evidence) {
  const TableView table = recompute(evidence);
  const auto everything = table.first({{"scheme", "keep everything"}});
  if (!everything) return {};
  const double n = table.number(*everything, "block passes");
  Sentences sentences;
  size_t least = *everything;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.number(row, "peak") < table.number(least, "peak")) least = row;
    const std::string scheme = table.text(row, "scheme");
    if (row != *everything && scheme != "halves of halves" && scheme != "from the start each time")
      continue;
    sentences.push_back(str(
        scheme, ": peak ", table.text(row, "peak"), " GiB, ", table.text(row, "inputs kept"),
        table.number(row, "inputs kept") == 1 ? " input kept, " : " inputs kept, ",
        table.text(row, "block passes"), " passes through one of ", fixed(n, 0), " blocks, a step ",
        table.text(row, "step"), " times as long",
        growth_of(scheme, n, table.number(row, "inputs kept"), table.number(row, "block passes")),
        "."));
  }
  sentences.push_back(str("The scheme that needs the least memory: ", table.text(least, "scheme"),
                          ". It makes ", fixed(table.number(least, "block passes") / n, 1),
                          " times the passes of a step that keeps everything."));
  return sentences;
}

Sentences answer_best_group(const Evidence& evidence) {
  const TableView table = recompute(evidence);
  std::optional<size_t> best;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "scheme").find("(best)") != std::string::npos) best = row;
  }
  const auto all = table.first({{"scheme", "keep everything"}});
  if (!best || !all) return {};
  Sentences sentences = {str("By account: ", table.text(*best, "scheme"), " blocks peak at ",
                             table.text(*best, "peak"), " GiB instead of ",
                             table.text(*all, "peak"), " GiB, for a step ",
                             table.text(*best, "step"), " times as long.")};
  for (const size_t row : {*best - 1, *best + 1}) {
    if (row >= table.rows() || table.text(row, "scheme").rfind("groups", 0) != 0) continue;
    const double peak = table.number(row, "peak"), least = table.number(*best, "peak");
    sentences.push_back(str(table.text(row, "scheme"), ": ", table.text(row, "peak"), " GiB, ",
                            peak > least ? "more." : "NOT more."));
  }
  return sentences;
}

}  // namespace

void add_account_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep account`";
  const char* mesh_text =
      "126 feed-forward layers of 16,384 by 53,248: bytes of the state in fp32, what backward "
      "keeps, "
      "how many GPUs of 80 GB is that?";
  const std::vector<Question> all = {
      {"communication_accounting (a)", "2025", "account", mesh_text, needs, answer_mesh_state},
      {"communication_accounting (b)", "2025", "account",
       "Divided between N devices: from which N on is it less than 95 GB each?", needs,
       answer_mesh_ranks},
      {"communication_accounting (c)", "2025", "account",
       "From which batch on is a mesh of 16 by 4 compute-bound?", needs, answer_mesh_batch},
      {"communication_accounting (d)", "2025", "account",
       "What lowers that batch while the throughput stays high?", needs, answer_mesh_tricks},
      {"alternate_ring_all_reduce", "2026", "account",
       "An all-reduce that passes whole tensors around a ring: how long does it take?", needs,
       answer_ring},
      {"dp_bound", "2026", "account", "When is data parallelism bound by communication?", needs,
       answer_dp},
      {"fsdp_bound", "2026", "account", "And with parameters divided too?", needs, answer_fsdp},
      {"tp_bound", "2026", "account", "And tensor parallelism, forward and backward?", needs,
       answer_tp},
      {"fsdp_tp_bound", "2026", "account", "And both at once on a mesh?", needs, answer_fsdp_tp},
      {"fsdp_accounting (a)", "2026", "account",
       "How much memory should dividing parameters, gradients and state save?", needs,
       answer_fsdp_memory},
      {"gradient_checkpointing (a)", "2026", "account",
       "Which scheme of recomputation needs the least memory, and what does it cost?", needs,
       answer_recursive},
      {"gradient_checkpointing (b)", "2026", "account",
       "Without nesting: which size of a group of blocks has the lowest peak, beside its "
       "neighbours?",
       needs, answer_best_group, "",
       "the measured peak of it (train.recompute = block) at this size"},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
