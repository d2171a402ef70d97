// Answers about several ranks: what sums over them cost, what hides that, and an optimizer whose
// state is divided.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/workload.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/combine.h"

namespace flashstep::tools {
namespace {

// ---- All-reduce

// What size does to the time of one backend on one device, and what ranks do.
Facts transport_of(const TableRows& rows) {
  const TableRows few = rows.where({{"ranks", rows.least("ranks").text("ranks")}});
  const TableRow small = few.least("size"), large = few.most("size");
  const double bytes = large.number("size") / small.number("size"),
               time = large.number("time") / small.number("time");
  // With half of the proportional growth the fixed cost of a call is half of the small one's time.
  Facts facts = {{{"decides", which(time > bytes / 2)}}, {{"", large}, {"small", small}}};
  const TableRow many = rows.where({{"size", large.text("size")}}).most("ranks");
  if (!(many.number("ranks") > large.number("ranks"))) return facts;
  const auto sent = [](double n) { return 2 * (n - 1) / n; };
  const double measured = many.number("time") / large.number("time");
  const double expected = sent(many.number("ranks")) / sent(large.number("ranks"));
  facts.rows["many"] = many;
  facts.words["measured"] = fixed(measured, 2);
  facts.words["expected"] = fixed(expected, 2);
  facts.words["more"] = which(measured > 1.1 * expected);
  return facts;
}

Facts allreduce_sizes(const Evidence& evidence) {
  Facts facts;
  facts.shown = evidence.rows("allreduce", {"backend", "device", "ranks", "size", "time", "bus"})
                    .with({"time"});
  for (const TableRows& transport : facts.shown.by({"backend", "device"}))
    facts.add_case(transport_of(transport), 2);
  const auto both =
      pairs(facts.shown, {{"backend", "nccl"}}, {{"backend", "gloo"}}, {"ranks", "size"});
  const auto faster = ratios(both, "time");
  if (faster.empty()) return facts;
  facts.rows[""] = both.back().a;
  facts.words["speed"] = speed_words(faster.back());
  return facts;
}

// ---- Data parallelism

// Weights differ by rounding alone below this share of the largest movement.
constexpr double kSameWeights = 2e-2;
const Columns kDdpCase = {"model", "ranks", "context", "precision"};

TableRows ddp_rows(const Evidence& evidence) {
  return evidence.rows("ddp", {"model", "ranks", "wrapper", "step", "communication", "exposed",
                               "hidden", "weights"});
}

std::string ranks_case(const TableRow& row) {
  return say("{model}, {ranks} ranks[, context {context}][, {precision}]", row);
}

bool is_wrapper(const TableRow& row, const std::string& wrapper) {
  const std::string name = row.text("wrapper");
  return name == wrapper || name.starts_with(wrapper + " ");
}

// Of a case: of "bucketed" the fastest bucket.
TableRow fastest_of(const TableRows& rows, const std::string& wrapper) {
  return rows.if_([&](const TableRow& row) { return is_wrapper(row, wrapper); }).least("step");
}

// Whether the weights of a wrapper are a single process's.
AnswerFunction weights_of(const std::string& wrapper) {
  return [wrapper](const Evidence& evidence) -> Facts {
    const TableRows rows = ddp_rows(evidence).if_([&](const TableRow& row) {
      return is_wrapper(row, wrapper) && !row.text("weights").empty();
    });
    if (rows.empty()) return {};
    double worst = 0;
    size_t wrong = 0;
    for (const TableRow& row : rows) {
      const double error = row.number("weights");
      wrong += !(error <= kSameWeights);
      worst = std::isnan(error) ? error : std::max(worst, error);
    }
    return {{{"right", which(wrong == 0)},
             {"wrong", str(wrong)},
             {"runs", count_of(rows.size(), "run")},
             {"exact", which(worst == 0)},
             {"worst", three_digits(worst)}}};
  };
}

// Of each case, two at most, with the rows of the first for the table; `of_case` gives nothing for
// one that is not told.
Facts by_case(const Evidence& evidence, const std::function<Facts(const TableRows&)>& of_case) {
  Facts facts;
  for (const TableRows& rows : ddp_rows(evidence).by(kDdpCase)) {
    Facts found = of_case(rows);
    if (found.rows.empty()) continue;
    if (facts.cases.empty()) facts.shown = found.shown.empty() ? rows : found.shown;
    facts.add_case(std::move(found), 2);
  }
  return facts;
}

Facts ddp_naive(const Evidence& evidence) {
  return by_case(evidence, [](const TableRows& rows) -> Facts {
    const TableRow naive = fastest_of(rows, "naive"), none = fastest_of(rows, "none");
    if (!naive) return {};
    const double step = naive.number("step"), added = step / none.number("step");
    return {{{"case", ranks_case(naive)},
             {"share", percent(naive.number("communication") / step)},
             {"adds", which(compare_measured(added, 1) > 0)},
             {"added", percent(added - 1, 1)}},
            {{"", naive}, {"b", none}}};
  });
}

// The step of one wrapper beside that of others.
AnswerFunction beside(const std::string& wrapper, const Columns& others) {
  return [wrapper, others](const Evidence& evidence) {
    Facts facts;
    for (const std::string& other : others) {
      Tally steps;
      TableRow a, b;
      for (const TableRows& of_case : ddp_rows(evidence).by(kDdpCase)) {
        const TableRow from = fastest_of(of_case, other), to = fastest_of(of_case, wrapper);
        if (!from || !to) continue;
        steps.add(to.number("step"), from.number("step"));
        a = from, b = to;
        facts.shown = of_case;
      }
      if (steps.cases() == 0) continue;
      const bool first = facts.cases.empty();
      const double before = a.number("communication"), after = b.number("communication");
      const bool sent = before > 0 && after > 0;
      const std::string tally = steps.words("shorter", "as long within 2 %", "longer");
      facts.cases.push_back({{{"first", which(first)},
                              {"case", first ? ranks_case(b) : ""},
                              {"tally", steps.cases() > 1 ? tally : ""},
                              {"sent", sent ? change_words(before, after) : ""}},
                             {{"", b}, {"b", a}}});
    }
    return facts;
  };
}

Facts ddp_traces(const Evidence& evidence) {
  return by_case(evidence, [](const TableRows& rows) -> Facts {
    const TableRow naive = fastest_of(rows, "naive"), sent = fastest_of(rows, "overlapped");
    const double more = sent.number("hidden") - naive.number("hidden");
    if (std::isnan(more)) return {};
    return {{{"case", ranks_case(sent)}, {"more", which(more > 5)}}, {{"", naive}, {"b", sent}}};
  });
}

double bucket_size(const TableRow& row) {
  const std::string wrapper = row.text("wrapper");
  const size_t at = wrapper.find(' ');
  return at == std::string::npos ? NAN : std::strtod(wrapper.c_str() + at, nullptr);
}

std::string bucket_words(const TableRow& row) {
  return say("{size} MB ({step|ms})", row, {}, {{"size", three_digits(bucket_size(row))}});
}

Facts ddp_buckets(const Evidence& evidence) {
  return by_case(evidence, [](const TableRows& rows) -> Facts {
    const TableRows buckets =
        rows.if_([](const TableRow& row) { return is_wrapper(row, "bucketed"); }).with({"step"});
    if (buckets.size() < 2) return {};
    const TableRow fast = buckets.least("step"), slow = buckets.most("step"),
                   single = fastest_of(rows, "overlapped");
    const double step = fast.number("step");
    return {{{"runs", str(buckets.size())},
             {"fast", bucket_words(fast)},
             {"slow", bucket_words(slow)},
             {"change", change_words(step, slow.number("step"))},
             {"case", ranks_case(fast)},
             {"order", which_order(compare_measured(step, single.number("step")))}},
            {{"", single}},
            buckets};
  });
}

// Bandwidth (bytes/s) and fixed cost (s) of a sum over two ranks on the device that ddp used: what
// of the smallest message's time its bytes do not explain.
struct LinkAnswer {
  double bandwidth = NAN, overhead = NAN;
};
LinkAnswer link_of(const Evidence& evidence, const std::string& backend) {
  const TableRows rows =
      evidence.rows("allreduce", {"backend", "ranks", "size", "time", "algorithm", "alone"})
          .where({{"backend", backend}, {"ranks", "2"}})
          .with({"algorithm"});
  const TableRow small = rows.least("size");
  LinkAnswer link{rows.most("algorithm").number("algorithm") * 1e9};
  const double own = small.number("size") * 1e6 / link.bandwidth;
  link.overhead = std::fmax(small.number("alone") / 1e3 - own, 0);
  return link;
}

// Bytes of all gradients of a model by its name; NaN for a name that is none.
double gradient_bytes(const std::string& model) {
  try {
    ModelConfig config = model_by_name(model);
    config.context_length = 1;  // RoPE has no parameters: any will do
    return 4.0 * static_cast<double>(parameter_count(resolved(config)));
  } catch (const UserError&) {
    return NAN;
  }
}

Facts ddp_bucket_model(const Evidence& evidence) {
  const TableRows rows = ddp_rows(evidence);
  const bool gpu = !rows.empty() && rows.front().text("device") != "cpu" &&
                   rows.front().result->made.driver != "";
  const std::string backend = gpu ? "nccl" : "gloo";
  const LinkAnswer link = link_of(evidence, backend);
  if (rows.empty() || !std::isfinite(link.bandwidth)) return {};
  Facts facts = {{{"known", which(true)},
                  {"backend", backend},
                  {"bandwidth", three_digits(link.bandwidth / 1e9)},
                  {"overhead", three_digits(link.overhead * 1e6)},
                  {"hides", which(link.overhead > 0)}}};
  for (const TableRows& of_case : rows.by(kDdpCase)) {
    const TableRow best = fastest_of(of_case, "bucketed");
    const double bytes = gradient_bytes(of_case.front().text("model"));
    const double modelled = std::sqrt(bytes * link.bandwidth * link.overhead) / 1e6;
    const double ratio = bucket_size(best) / modelled;
    if (!(link.overhead > 0) || std::isnan(ratio)) continue;
    facts.add_case({{{"case", ranks_case(best)},
                     {"modelled", three_digits(modelled)},
                     {"best", three_digits(bucket_size(best))},
                     {"near", which(ratio < 4 && ratio > 0.25)}}},
                   1);
  }
  return facts;
}

// ---- Sharded optimizer

TableRows sharding_rows(const Evidence& evidence) {
  return evidence
      .rows("sharding", {"model", "ranks", "optimizer", "after init", "before update",
                         "after update", "state", "update", "step"})
      .with({"step"});
}

// Each way to divide beside the same case undivided: a is divided, b is not.
std::vector<RowPair> divided(const TableRows& rows) {
  std::vector<RowPair> found;
  for (const TableRow& row : rows) {
    const TableRow whole = rows.first({{"optimizer", "none"},
                                       {"model", row.text("model")},
                                       {"ranks", row.text("ranks")},
                                       {"precision", row.text("precision")}});
    if (row.text("optimizer") != "none" && whole) found.push_back({row, whole});
  }
  return found;
}

std::string shard_case(const TableRow& row) {
  return str("`", row.text("optimizer"), "`, ", ranks_case(row));
}

Facts sharding_state(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  const auto both = divided(rows);
  if (both.empty()) return {};
  std::vector<std::string> uneven;
  double share = 0;
  for (const auto& [shard, whole] : both) {
    share = shard.number("state") / whole.number("state");
    if (!(share <= 1.02 / shard.number("ranks"))) uneven.push_back(shard_case(shard));
  }
  return {{{"share", percent(share, 1)},
           {"case", shard_case(both.back().a)},
           {"even", which(uneven.empty())},
           {"uneven", join(uneven, "; ")},
           {"cases", count_of(both.size(), "case")}},
          {{"", both.back().a}, {"b", both.back().b}},
          rows};
}

Facts sharding_memory(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  const auto both = divided(rows);
  if (both.empty()) return {};
  const auto& [shard, whole] = both.back();
  const double saved = whole.number("after update") - shard.number("after update");
  const double state = whole.number("state") - shard.number("state");
  return {{{"case", shard_case(shard)},
           {"smaller", memory_words(1024 * state)},
           {"peak", which(saved > 0.5 * state)}},
          {{"", shard}, {"b", whole}},
          rows};
}

Facts sharding_time(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  const auto both = divided(rows);
  if (both.empty()) return {};
  Tally tally;
  for (const auto& [shard, whole] : both) tally.add(shard.number("step"), whole.number("step"));
  const auto& [shard, whole] = *std::min_element(
      both.begin(), both.end(),
      [](const RowPair& a, const RowPair& b) { return a.a.number("step") < b.a.number("step"); });
  const double exposed = shard.number("exposed") / shard.number("communication");
  const std::string words = tally.words("shorter", "as long within 2 %", "longer");
  return {{{"case", shard_case(shard)},
           {"exposed", exposed >= 0 ? percent(exposed) : ""},
           {"tally", both.size() > 1 ? words : ""}},
          {{"", shard}, {"b", whole}},
          rows};
}

// What ours does is in the code; what it costs is measured.
Facts sharding_zero(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  if (rows.where({{"optimizer", "whole"}}).empty()) return {};
  Facts facts = {{{"known", which(true)}}, {}, rows};
  for (const auto& [flat, whole] : pairs(rows, {{"optimizer", "flat"}}, {{"optimizer", "whole"}},
                                         {"model", "ranks", "precision"})) {
    const double share = flat.number("gradients") / whole.number("gradients");
    facts.add_case(
        {{{"share", percent(share)},
          {"case", ranks_case(flat)},
          {"order", which_order(compare_measured(flat.number("step"), whole.number("step")))}},
         {{"", flat}, {"b", whole}}},
        2);
  }
  return facts;
}

}  // namespace

void add_parallel_answers(Answers& answers) {
  answers["allreduce_sizes"] = allreduce_sizes;
  answers["ddp_naive_weights"] = weights_of("naive");
  answers["ddp_overlap_weights"] = weights_of("overlapped");
  answers["ddp_bucket_weights"] = weights_of("bucketed");
  answers["ddp_naive"] = ddp_naive;
  answers["ddp_flat"] = beside("flat", {"naive"});
  answers["ddp_overlap"] = beside("overlapped", {"naive", "flat"});
  answers["ddp_traces"] = ddp_traces;
  answers["ddp_buckets"] = ddp_buckets;
  answers["ddp_bucket_model"] = ddp_bucket_model;
  answers["sharding_state"] = sharding_state;
  answers["sharding_memory"] = sharding_memory;
  answers["sharding_time"] = sharding_time;
  answers["sharding_zero"] = sharding_zero;
}

}  // namespace flashstep::tools
