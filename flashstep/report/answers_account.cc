// Answers that are computed and not measured: accounts of communication, memory and recomputation.
#include <algorithm>
#include <cmath>
#include <regex>

#include "flashstep/base/text.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

// Each quantity by its name and by the first word of it.
Facts mesh(const Evidence& evidence) {
  const TableRows rows = evidence.rows("mesh");
  Facts facts = {{{"of", subject_of(rows)}}, {}, rows};
  const auto value = [&](const std::string& name) {
    return rows.first({{"quantity", name}}).number("value");
  };
  static const std::regex kept("kept for backward by (.*) tokens");
  const double least = value("least batch a device, axes at once");
  for (const TableRow& row : rows) {
    const std::string name = row.text("quantity"), words = say("{value}[ {unit}]", row);
    facts.words[name] = words;
    facts.words.try_emplace(name.substr(0, name.find(' ')), words);
    std::smatch found;
    if (!std::regex_match(name, found, kept)) continue;
    const std::string tokens = found.str(1);
    facts.words["tokens"] = tokens;
    facts.words["activations"] = words;
    facts.words["chosen"] = which(with_commas(std::llround(std::ceil(least))) != tokens);
  }
  const double once = value("least batch, axes at once"),
               turn = value("least batch, axes one after the other"), most = value("most TP ranks");
  if (std::isnan(once + turn + most)) return facts;
  facts.words["fewer"] = once < turn ? percent(1 - once / turn) : "no";
  facts.words["most TP"] = three_digits(most);
  facts.words["tricks"] = which(true);
  return facts;
}

Facts ring(const Evidence& evidence) {
  Facts facts;
  bool as_derived = true;  // N - 1 steps of whole tensors beside 2 (N - 1) of N-ths
  for (const TableRows& by_ranks : evidence.rows("ring").by({"ranks"})) {
    const auto both = pairs(by_ranks, "algorithm", "whole tensors (alternate)", "ring", {"size"});
    if (both.empty()) continue;
    const auto& [whole, of_ring] = both.back();
    const double n = whole.number("ranks");
    as_derived &= whole.number("steps") == n - 1 && of_ring.number("steps") == 2 * (n - 1) &&
                  std::abs(whole.number("sent") / of_ring.number("sent") / (n / 2) - 1) < 0.005;
    facts.rows[""] = whole;
    facts.words["as derived"] = which(as_derived);
    facts.words["of"] = subject_of(by_ranks);
    facts.shown.push_back(whole);
    facts.shown.push_back(of_ring);
  }
  return facts;
}

// The rows of the strategies whose name begins so.
AnswerFunction bound_of(const std::string& strategy) {
  return [strategy](const Evidence& evidence) {
    Facts facts;
    facts.shown = evidence.rows("bounds").if_([&](const TableRow& row) {
      const std::string name = row.text("strategy");
      return name == strategy || (strategy == "FSDP + TP" && name.starts_with("FSDP "));
    });
    if (!facts.shown.empty()) facts.words["layer"] = facts.shown.front().table->title;
    for (const TableRow& row : facts.shown)
      facts.add_case({{{"bounded", which(std::isfinite(row.number("most devices")))}}, {{"", row}}},
                     3);
    return facts;
  };
}

Facts sharding_account(const Evidence& evidence) {
  const TableRows rows = evidence.rows("sharding_account");
  const RowPairs both = pairs(rows, "strategy", "ZeRO-3 (FSDP)", "DDP", {"ranks"});
  return {{{"of", subject_of(rows)}}, both.last().rows(), rows};
}

// What the numbers of a scheme show of its growth with n blocks: 0, O(1) memory for O(n^2) passes;
// 1, O(log n) for O(n log n); "" where they show another.
std::string growth_of_scheme(const TableRow& row, double n) {
  const double inputs = row.number("inputs kept"), passes = row.number("block passes");
  const double halvings = std::ceil(std::log2(n));
  const std::string scheme = row.text("scheme");
  if (scheme == "from the start each time" && inputs <= 1 && passes == n * (n + 1) / 2) return "0";
  if (scheme == "halves of halves" && inputs <= halvings + 1 && passes <= n * (1 + halvings))
    return "1";
  return "";
}

Facts recompute_schemes(const Evidence& evidence) {
  const TableRows rows = evidence.rows("recompute");
  const TableRow all = rows.first({{"scheme", "keep everything"}}), least = rows.least("peak");
  TableRow halves = rows.first({{"scheme", "halves of halves"}});
  if (!all) return {};
  if (halves.index == least.index) halves = {};
  const double n = all.number("block passes");
  return {{{"of", subject_of(rows)},
           {"grows", growth_of_scheme(least, n)},
           {"halves grow", growth_of_scheme(halves, n)}},
          {{"", least}, {"all", all}, {"halves", halves}},
          rows};
}

// Of "step, bf16 stream, recompute blocks by 2": 2; 0 where blocks are not recomputed.
int64_t group_size(const TableRow& row) {
  const std::string mode = row.text("mode"), blocks = "recompute block", by = "blocks by ";
  if (!contains(mode, blocks)) return 0;
  const size_t at = mode.find(by);
  return at == mode.npos ? 1 : std::atoll(mode.c_str() + at + by.size());
}

Facts recompute_groups(const Evidence& evidence) {
  const TableRows rows = evidence.rows("recomputed");
  const TableRows groups = rows.if_([](const TableRow& row) { return group_size(row) > 0; });
  const auto keeps_all = [](const TableRow& row) {
    return !contains(row.text("mode"), "recompute");
  };
  const TableRow all = rows.if_(keeps_all).front();  // none where it did not fit
  const TableRow best = groups.least("peak memory");
  if (groups.size() < 2) return {};
  std::vector<std::string> others;
  for (const TableRow& row : groups) {
    if (group_size(row) != group_size(best))
      others.push_back(say(str("{peak memory|GiB} (", group_size(row), ")"), row));
  }
  Facts facts = {{{"size", std::to_string(group_size(best))},
                  {"one", which(group_size(best) == 1)},
                  {"others", join(others)}},
                 {{"", best}, {"all", all}},
                 rows};
  const TableRows account = evidence.rows("recompute").if_([](const TableRow& row) {
    const std::string scheme = row.text("scheme");
    return scheme.starts_with("groups of ") && contains(scheme, "(best)");
  });
  if (!account.empty()) {
    const int64_t size = std::atoll(account.front().text("scheme").c_str() + 10);
    facts.words["account"] = std::to_string(size);
    facts.words["agrees"] = which(size == group_size(best));
  }
  return facts;
}

}  // namespace

Answers account_answers() {
  return {{"mesh_state", mesh},
          {"mesh_ranks", mesh},
          {"mesh_batch", mesh},
          {"mesh_tricks", mesh},
          {"ring", ring},
          {"bound_dp", bound_of("DP")},
          {"bound_fsdp", bound_of("FSDP")},
          {"bound_tp", bound_of("TP")},
          {"bound_fsdp_tp", bound_of("FSDP + TP")},
          {"sharding_account", sharding_account},
          {"recompute_schemes", recompute_schemes},
          {"recompute_groups", recompute_groups}};
}

}  // namespace flashstep::tools
