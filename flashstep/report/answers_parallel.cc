// Answers about several ranks: what sums over them cost, what hides that, and an optimizer whose
// state is divided.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/leaderboard.h"
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
  const TableRow small = few.least("size"), large = few.most("size"),
                 many = rows.where({{"size", large.text("size")}}).most("ranks");
  const double bytes = large.number("size") / small.number("size"),
               time = large.number("time") / small.number("time");
  // With half of the proportional growth the fixed cost of a call is half of the small one's time.
  Facts facts = {{{"decides", which(time > bytes / 2)}}, {{"", large}, {"small", small}}};
  constexpr double kMostRanks = 6;  // of the handouts
  if (many.number("ranks") < kMostRanks) facts.words["few"] = join(rows.distinct("ranks"), " and ");
  if (!(many.number("ranks") > large.number("ranks"))) return facts;
  const auto sent = [](double n) { return 2 * (n - 1) / n; };
  const double measured = many.number("time") / large.number("time"),
               expected = sent(many.number("ranks")) / sent(large.number("ranks"));
  facts.rows["many"] = many;
  facts.words["expected"] = fixed(expected, 2);
  facts.words["more"] = which(measured > 1.1 * expected);
  return facts;
}

Facts allreduce_sizes(const Evidence& evidence) {
  Facts facts = {.shown = evidence.rows("allreduce")};
  for (const TableRows& transport : facts.shown.by({"backend", "device"}))
    facts.add_case(transport_of(transport), 2);
  facts.rows = pairs(facts.shown, "backend", "nccl", "gloo", {"ranks", "size"}).last().rows();
  return facts;
}

// ---- Data parallelism

// Weights differ by rounding alone below this share of the largest movement.
constexpr double kSameWeights = 2e-2;
const Columns kDdpCase = {"model", "ranks", "context", "precision"};

TableRows of_wrapper(const TableRows& rows, const std::string& wrapper) {
  return rows.if_([&](const TableRow& row) {
    const std::string name = row.text("wrapper");
    return name == wrapper || name.starts_with(wrapper + " ");
  });
}

// Of a case: of "bucketed" the fastest bucket.
TableRow fastest_of(const TableRows& rows, const std::string& wrapper) {
  return of_wrapper(rows, wrapper).least("step");
}

// Whether the weights of a wrapper are a single process's.
AnswerFunction weights_of(const std::string& wrapper) {
  return [wrapper](const Evidence& evidence) -> Facts {
    size_t runs = 0, wrong = 0;
    double worst = 0;
    for (const TableRow& row : of_wrapper(evidence.rows("ddp"), wrapper)) {
      if (row.text("weights").empty()) continue;
      const double error = row.number("weights");
      ++runs;
      wrong += !(error <= kSameWeights);
      worst = std::isnan(error) ? error : std::max(worst, error);
    }
    if (runs == 0) return {};
    return {{{"right", which(wrong == 0)},
             {"wrong", str(wrong)},
             {"runs", count_of(runs, "run")},
             {"exact", which(worst == 0)},
             {"worst", worst == 0 ? "" : three_digits(worst)}}};
  };
}

// Of each case, two at most, with the rows of the first for the table; `of_case` gives nothing for
// one that is not told.
AnswerFunction by_case(const std::function<Facts(const TableRows&)>& of_case) {
  return [of_case](const Evidence& evidence) {
    Facts facts;
    for (const TableRows& rows : evidence.rows("ddp").by(kDdpCase)) {
      Facts found = of_case(rows);
      if (found.rows.empty()) continue;
      if (facts.cases.empty()) facts.shown = found.shown.empty() ? rows : found.shown;
      facts.add_case(std::move(found), 2);
    }
    return facts;
  };
}

Facts ddp_naive(const TableRows& rows) {
  const RowPair both = {fastest_of(rows, "naive"), fastest_of(rows, "none")};
  return both.a ? Facts{{}, both.rows()} : Facts();
}

// Share of a step without communication: what is told of is longer by more, beside what is exposed.
constexpr double kLonger = 0.1;

// The step of one wrapper beside that of others.
AnswerFunction beside(const std::string& wrapper, const Columns& others) {
  return [wrapper, others](const Evidence& evidence) {
    Facts facts;
    for (const std::string& other : others) {
      RowPairs both;
      for (const TableRows& of_case : evidence.rows("ddp").by(kDdpCase)) {
        const RowPair pair = {fastest_of(of_case, wrapper), fastest_of(of_case, other)};
        if (!pair.a || !pair.b) continue;
        both.push_back(pair);
        facts.shown = of_case;
      }
      if (both.empty()) continue;
      const std::string tally =
          Tally(both, "step").words("shorter", "as long within 2 %", "longer");
      facts.cases.push_back(
          {{{"first", which(facts.cases.empty())}, {"tally", both.size() > 1 ? tally : ""}},
           both.last().rows()});
    }
    return facts;
  };
}

// And the wrapper, PyTorch's among them, whose step is longest beyond what is exposed of its
// communication.
Facts ddp_overlap(const Evidence& evidence) {
  Facts facts = beside("overlapped", {"naive", "flat"})(evidence);
  const double alone = fastest_of(facts.shown, "none").number("step");
  double most = kLonger * alone;
  for (const TableRow& row : facts.shown) {
    const double more = row.number("step") - alone;
    if (!(more - row.number("exposed") > most)) continue;
    most = more - row.number("exposed");
    facts.rows["slowest"] = row;
    facts.words["more"] = milliseconds(more);
  }
  return facts;
}

Facts ddp_traces(const TableRows& rows) {
  const RowPair both = {fastest_of(rows, "naive"), fastest_of(rows, "overlapped")};
  const double more = both.b.number("hidden") - both.a.number("hidden");
  return std::isnan(more) ? Facts() : Facts{{{"more", which(more > 5)}}, both.rows()};
}

double bucket_size(const TableRow& row) {
  const std::string wrapper = row.text("wrapper");
  const size_t at = wrapper.find(' ');
  return at == std::string::npos ? NAN : std::strtod(wrapper.c_str() + at, nullptr);
}

Facts ddp_buckets(const TableRows& rows) {
  const TableRows buckets = of_wrapper(rows, "bucketed").with({"step"});
  const TableRow fast = buckets.least("step"), slow = buckets.most("step");
  if (buckets.size() < 2) return {};
  return {{{"runs", str(buckets.size())},
           {"size", three_digits(bucket_size(fast))},
           {"slow size", three_digits(bucket_size(slow))}},
          {{"", fast}, {"slow", slow}, {"single", fastest_of(rows, "overlapped")}},
          buckets};
}

// Bandwidth (bytes/s) and fixed cost (s) of a sum over two ranks on the device that ddp used: what
// of the smallest message's time its bytes do not explain.
struct LinkAnswer {
  double bandwidth = NAN, overhead = NAN;
};
LinkAnswer link_of(const Evidence& evidence, bool gpu) {
  const TableRows rows = evidence.rows("link").where(
      {{"backend", gpu ? "nccl" : "gloo"}, {"device", gpu ? "cuda" : "cpu"}, {"ranks", "2"}});
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
  const TableRows rows = evidence.rows("ddp");
  if (rows.empty()) return {};
  // The table does not say the device: it is a GPU where there is one and none other was asked for.
  const Provenance& made = rows.front().result->made;
  const bool gpu = !made.driver.empty() && !contains(made.command, "--device cpu");
  const LinkAnswer link = link_of(evidence, gpu);
  if (!std::isfinite(link.bandwidth)) return {};
  Facts facts = {{{"known", which(true)},
                  {"backend", gpu ? "nccl" : "gloo"},
                  {"bandwidth", three_digits(link.bandwidth / 1e9)},
                  {"overhead", three_digits(link.overhead * 1e6)},
                  {"hides", which(link.overhead > 0)}}};
  for (const TableRows& of_case : rows.by(kDdpCase)) {
    const TableRow best = fastest_of(of_case, "bucketed");
    const double bytes = gradient_bytes(of_case.front().text("model"));
    const double modelled = std::sqrt(bytes * link.bandwidth * link.overhead) / 1e6;
    const double ratio = bucket_size(best) / modelled;
    const bool several = of_wrapper(of_case, "bucketed").with({"step"}).size() > 1;
    if (!(link.overhead > 0) || std::isnan(ratio)) continue;
    facts.add_case({{{"modelled", three_digits(modelled)},
                     {"best", three_digits(bucket_size(best))},
                     {"several", which(several)},
                     {"near", which(ratio < 4 && ratio > 0.25)}},
                    {{"", best}}},
                   1);
  }
  return facts;
}

Facts matrix_answer(const Evidence& evidence) {
  const TableRows rows = evidence.rows("matrix");
  return {{{"losses", span_of(rows.numbers("validation loss"), 3)}},
          {{"", rows.most("tokens")}, {"lean", rows.least("peak memory")}},
          rows};
}

// ---- Sharded optimizer

// What is told of each way to divide beside the same case undivided: a is divided, b is not.
AnswerFunction divided(const std::function<Facts(const RowPairs&)>& told) {
  return [told](const Evidence& evidence) {
    const TableRows rows = evidence.rows("sharding");
    const auto is_divided = [](const TableRow& row) { return row.text("optimizer") != "none"; };
    const RowPairs both = pairs(rows.if_(is_divided), rows.where({{"optimizer", "none"}}),
                                {"model", "ranks", "precision"});
    if (both.empty()) return Facts();
    Facts facts = told(both);
    if (facts.rows.empty()) facts.rows = both.last().rows();
    facts.shown = rows;
    return facts;
  };
}

Facts sharding_state(const RowPairs& both) {
  std::vector<std::string> uneven;
  for (const auto& [shard, whole] : both) {
    const double share = shard.number("state") / whole.number("state");
    if (!(share <= 1.02 / shard.number("ranks"))) uneven.push_back(say("{@shard}", shard));
  }
  return {{{"even", which(uneven.empty())},
           {"uneven", join(uneven, "; ")},
           {"cases", count_of(both.size(), "case")}}};
}

Facts sharding_memory(const RowPairs& both) {
  const auto& [shard, whole] = both.back();
  const auto less = [&](const char* what) { return whole.number(what) - shard.number(what); };
  const double saved = less("state") + less("gradients"), lost = less("after update");
  Facts facts = {{{"peak", lost < 0 ? "0" : lost > 0.5 * saved ? "2" : "1"}}};
  // Ways to divide take turns with one model, whose copies in bf16 (ops/compute_copy.h) the first
  // one's steps make and nobody drops.
  const double copies = 1024 * whole.number("parameters") / 2;
  if (shard.text("precision") == "bf16" &&
      compare_measured(-1024 * less("after init"), copies) == 0)
    facts.words["copies"] = memory_words(copies);
  return facts;
}

Facts sharding_time(const RowPairs& both) {
  const RowPair fastest =
      std::ranges::min(both, {}, [](const RowPair& pair) { return pair.a.number("step"); });
  const std::string tally = Tally(both, "step").words("shorter", "as long within 2 %", "longer");
  return {{{"tally", both.size() > 1 ? tally : ""}}, fastest.rows()};
}

// What ours does is in the code; what it costs is measured.
Facts sharding_zero(const Evidence& evidence) {
  const TableRows rows = evidence.rows("sharding");
  if (rows.where({{"optimizer", "whole"}}).empty()) return {};
  Facts facts = {{{"known", which(true)}}, {}, rows};
  for (const RowPair& both :
       pairs(rows, "optimizer", "flat", "whole", {"model", "ranks", "precision"})) {
    facts.add_case({{}, both.rows()}, 2);
  }
  return facts;
}

// ---- Fully sharded parameters

// Share of a step that may be exposed communication where parameters count as gathered in time.
constexpr double kExposed = 0.03;

bool is_peer(const TableRow& row) { return row.text("implementation").starts_with("FSDP2"); }

Facts full_leaderboard(const Evidence& evidence) {
  const TableRows rows = evidence.rows("full leaderboard");
  const TableRows ours = rows.if_([](const TableRow& row) { return !is_peer(row); });
  const TableRow fastest = ours.least("step");
  if (!fastest) return {};
  const auto is_other = [&](const TableRow& row) {
    return row.text("implementation") != fastest.text("implementation");
  };
  return {{},
          {{"", fastest},
           {"other", ours.if_(is_other).front()},
           {"peer", rows.if_(is_peer).least("step")}},
          rows};
}

Facts full_right(const Evidence& evidence) {
  Facts facts = {.shown = evidence.rows("full")};
  const TableRows checked = facts.shown.if_(
      [](const TableRow& row) { return !row.text("weight error").empty() && !is_peer(row); });
  if (checked.empty()) return {};
  for (const TableRow& row : checked) {
    const bool right = row.number("loss error") <= kMostLossError &&
                       row.number("gradient error") <= kMostGradientError &&
                       row.number("weight error") <= kMostWeightError;
    facts.add_case({{{"right", which(right)}}, {{"", row}}}, 2);
  }
  facts.rows[""] = checked.least("step");
  return facts;
}

Facts full_gather(const Evidence& evidence) {
  Facts facts = {.shown = evidence.rows("full work")};
  for (const TableRow& row : facts.shown) {
    const bool ends = row.number("exposed") <= kExposed * row.number("traced step");
    facts.add_case({{{"ends", which(ends)}}, {{"", row}}}, 2);
  }
  return facts;
}

}  // namespace

Answers parallel_answers() {
  return {{"allreduce_sizes", allreduce_sizes},
          {"ddp_naive_weights", weights_of("naive")},
          {"ddp_overlap_weights", weights_of("overlapped")},
          {"ddp_bucket_weights", weights_of("bucketed")},
          {"ddp_naive", by_case(ddp_naive)},
          {"ddp_flat", beside("flat", {"naive"})},
          {"ddp_overlap", ddp_overlap},
          {"ddp_traces", by_case(ddp_traces)},
          {"ddp_buckets", by_case(ddp_buckets)},
          {"ddp_bucket_model", ddp_bucket_model},
          {"matrix", matrix_answer},
          {"sharding_state", divided(sharding_state)},
          {"sharding_memory", divided(sharding_memory)},
          {"sharding_time", divided(sharding_time)},
          {"sharding_zero", sharding_zero},
          {"full_leaderboard", full_leaderboard},
          {"full_right", full_right},
          {"full_gather", full_gather}};
}

}  // namespace flashstep::tools
