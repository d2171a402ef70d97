// Answers about dividing the optimizer's state between ranks.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kShardingColumns = {"model",      "ranks",         "optimizer",
                                                   "after init", "before update", "after update",
                                                   "state",      "update",        "step"};

std::string sharded_case(const TableView& table, size_t row) {
  std::string name = table.text(row, "model") + ", " + table.text(row, "ranks") + " ranks";
  const std::string precision = table.text(row, "precision");
  return precision.empty() ? name : name + ", " + precision;
}

// Calls `visit(case, unsharded row, sharded row)` for each way to divide in each case.
template <typename Visit>
void for_each_pair(const TableView& table, const Visit& visit) {
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "optimizer") == "none" || std::isnan(table.number(row, "step"))) continue;
    for (size_t other = 0; other < table.rows(); ++other) {
      if (table.text(other, "optimizer") == "none" && !std::isnan(table.number(other, "step")) &&
          sharded_case(table, other) == sharded_case(table, row)) {
        visit(sharded_case(table, row), other, row);
      }
    }
  }
}

Sentences answer_state(const Evidence& evidence) {
  const TableView table = evidence.table("sharding", kShardingColumns);
  Sentences sentences;
  for_each_pair(table, [&](const std::string& name, size_t whole, size_t shard) {
    const double share = table.number(shard, "state") / table.number(whole, "state");
    const double wanted = 1 / table.number(shard, "ranks");
    sentences.push_back(
        str(name, ", ", table.text(shard, "optimizer"), ": a rank holds ", percent(share, 1),
            " of the optimizer's state; 1 / ranks is ", percent(wanted, 1), ": ",
            share <= 1.02 * wanted ? "it is divided evenly." : "it is NOT divided evenly."));
  });
  return sentences;
}

Sentences answer_memory(const Evidence& evidence) {
  const TableView table = evidence.table("sharding", kShardingColumns);
  Sentences sentences;
  for_each_pair(table, [&](const std::string& name, size_t whole, size_t shard) {
    std::string sentence = str(name, ", ", table.text(shard, "optimizer"), ":");
    for (const char* moment : {"after init", "before update", "after update"}) {
      sentence += str(" ", moment, " ", fixed(table.number(whole, moment), 2), " -> ",
                      fixed(table.number(shard, moment), 2), " GiB",
                      std::string(moment) == "after update" ? "" : ",");
    }
    const double saved = table.number(whole, "after update") - table.number(shard, "after update");
    const double state = table.number(whole, "state") - table.number(shard, "state");
    sentence += str("; the state itself is ", fixed(state, 2), " GiB smaller, ",
                    saved > 0.5 * state ? "which is what the peak loses"
                                        : "which the peak does not show: something else sets it",
                    ".");
    sentences.push_back(sentence);
  });
  if (const auto first = table.first({{"optimizer", "none"}}); first && !sentences.empty()) {
    sentences.push_back(str("Without shards a rank holds ",
                            fixed(table.number(*first, "parameters"), 2), " GiB of parameters, ",
                            fixed(table.number(*first, "gradients"), 2), " GiB of gradients and ",
                            fixed(table.number(*first, "state"), 2),
                            " GiB of the optimizer's state."));
  }
  return sentences;
}

// "; of 11.2 ms in which updated parameters travel 62 % have no update beside them, ...", where
// that was measured.
std::string exposure_of_sending(const TableView& table, size_t shard) {
  const double sent = table.number(shard, "communication"),
               exposed = table.number(shard, "exposed");
  if (std::isnan(exposed) || !(sent > 0)) return "";
  std::string text = str("; of ", milliseconds(sent), " in which updated parameters travel ",
                         percent(exposed / sent), " have no update beside them");
  const double idle = table.number(shard, "idle");
  if (!std::isnan(idle)) text += str(", and for ", milliseconds(idle), " nothing runs");
  return text;
}

Sentences answer_time(const Evidence& evidence) {
  const TableView table = evidence.table("sharding", kShardingColumns);
  Sentences sentences;
  for_each_pair(table, [&](const std::string& name, size_t whole, size_t shard) {
    const double before = table.number(whole, "step"), after = table.number(shard, "step");
    const int order = compare_measured(after, before);
    sentences.push_back(
        str(name, ", ", table.text(shard, "optimizer"), ": ", milliseconds(before),
            " a step without "
            "shards, ",
            milliseconds(after), " with them (",
            order == 0
                ? "the same within 2 %"
                : percent(std::abs(after / before - 1), 1) + (order < 0 ? " shorter" : " longer"),
            "); the update alone ", milliseconds(table.number(whole, "update")), " -> ",
            milliseconds(table.number(shard, "update")), exposure_of_sending(table, shard), "."));
  });
  return sentences;
}

// What ours does is in the code; what it costs is measured.
Sentences answer_zero(const Evidence& evidence) {
  const TableView table = evidence.table("sharding", kShardingColumns);
  if (!table) return {};
  if (!table.first({{"optimizer", "whole"}})) return {};
  Sentences sentences = {
      "`whole` gives each tensor to one rank, all-reduces gradients as data parallelism does and "
      "broadcasts the updated parameters: every rank keeps all gradients. ZeRO's first stage cuts "
      "through tensors instead, so that shares are equal, reduce-scatters gradients and gathers "
      "parameters: with n ranks (n - 1) / n of the bytes each, together what one all-reduce "
      "sends."};
  for (const size_t flat : table.where({{"optimizer", "flat"}})) {
    const auto whole = table.first({{"optimizer", "whole"},
                                    {"model", table.text(flat, "model")},
                                    {"ranks", table.text(flat, "ranks")},
                                    {"precision", table.text(flat, "precision")}});
    if (!whole || std::isnan(table.number(flat, "step") + table.number(*whole, "step"))) continue;
    const double ours = table.number(*whole, "step"), zero = table.number(flat, "step");
    const double gradients = table.number(flat, "gradients") / table.number(*whole, "gradients");
    const int order = compare_measured(zero, ours);
    sentences.push_back(str(sharded_case(table, flat), ": `flat` does that here: gradients take ",
                            percent(gradients), " of `whole`'s memory, and a step ",
                            milliseconds(zero), " against ", milliseconds(ours), ": ",
                            order < 0    ? "the cut through tensors is faster."
                            : order == 0 ? "both are as fast within 2 %."
                                         : "the cut through tensors is slower."));
  }
  return sentences;
}

}  // namespace

void add_sharding_questions(std::vector<Question>& questions) {
  const char* needs = "`flashstep bench sharding`";
  const std::vector<Question> all = {
      {"optimizer_state_sharding", "2024 2025 2026", "sharding",
       "An optimizer whose state is divided between ranks: what does a rank hold?", needs,
       answer_state},
      {"optimizer_state_sharding_accounting (a)", "2024 2025 2026", "sharding",
       "Peak memory after initialization, before and after the update, with and without it: does "
       "it "
       "agree with what one expects, and what holds what?",
       needs, answer_memory},
      {"optimizer_state_sharding_accounting (b)", "2024 2025 2026", "sharding",
       "What does it do to the time of a step?", needs, answer_time},
      {"optimizer_state_sharding_accounting (c)", "2024 2025 2026", "sharding",
       "How does it differ from ZeRO's first stage, in memory and in communication?", needs,
       answer_zero},
      {"fsdp", "2026", "sharding",
       "A wrapper that divides parameters too, gathers them layer by layer and computes in another "
       "dtype.",
       "fully sharded data parallelism, which flashstep does not have yet", nullptr},
      {"fsdp_accounting (b)", "2026", "sharding",
       "Does gathering a layer's parameters end before they are needed?",
       "fully sharded data parallelism, which flashstep does not have yet", nullptr},
  };
  questions.insert(questions.end(), all.begin(), all.end());
}

}  // namespace flashstep::report
