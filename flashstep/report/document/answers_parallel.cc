// Answers about several ranks: what sums over them cost, what hides that, and an optimizer whose
// state is divided.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/document/combine.h"
#include "flashstep/report/workload.h"

namespace flashstep::report {
namespace {

// ---- All-reduce

// What size does to the time of one backend on one device, and what ranks do.
std::string transport_sentence(const TableRows& rows) {
  const TableRows few = rows.where({{"ranks", rows.least("ranks").text("ranks")}});
  const TableRow small = few.least("size"), large = few.most("size");
  const double bytes = large.number("size") / small.number("size"),
               time = large.number("time") / small.number("time");
  // With half of the proportional growth the fixed cost of a call is half of the small one's time.
  std::string sentence = say(
      "{backend} on {device}, {ranks} ranks: {b.time|ms} for {b.size} MB to {time|ms} for {size} "
      "MB ({bus|3} GB/s of bus bandwidth); {what}",
      large, small,
      {{"what", time > bytes / 2 ? "bandwidth decides from the smallest size on"
                                 : "the fixed cost of a call still counts at the smallest"}});
  const TableRow many = rows.where({{"size", large.text("size")}}).most("ranks");
  if (many.number("ranks") > large.number("ranks")) {
    const auto sent = [](double n) { return 2 * (n - 1) / n; };
    const double measured = many.number("time") / large.number("time");
    const double expected = sent(many.number("ranks")) / sent(large.number("ranks"));
    sentence +=
        say("; {ranks} ranks take {measured} times as long, {beside} {expected} times of "
            "bytes that each must send",
            many, {},
            {{"measured", fixed(measured, 2)},
             {"expected", fixed(expected, 2)},
             {"beside", measured > 1.1 * expected ? "more than the" : "which agrees with the"}});
  }
  return sentence + ".";
}

Finding allreduce_sizes(const Evidence& evidence) {
  const TableRows rows =
      evidence.rows("allreduce", {"backend", "device", "ranks", "size", "time", "bus"})
          .with({"time"});
  if (rows.empty()) return {};
  Finding finding;
  for (const TableRows& transport : rows.by({"backend", "device"})) {
    if (finding.sentences.size() < 2) finding.sentences.push_back(transport_sentence(transport));
  }
  const auto both = pairs(rows, {{"backend", "nccl"}}, {{"backend", "gloo"}}, {"ranks", "size"});
  const auto faster = ratios(both, "time");
  if (!faster.empty())
    finding.sentences.push_back(str("At ", both.back().a.text("size"), " MB NCCL is ",
                                    speed_words(faster.back()), " Gloo."));
  finding.table = list(rows, {"backend", "device", "ranks", "size", "time", "bus", "of link"});
  finding.picture = {"allreduce", "bus"};
  return finding;
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
  std::vector<std::string> parts = {row.text("model"), row.text("ranks") + " ranks"};
  if (!row.text("context").empty()) parts.push_back("context " + row.text("context"));
  if (!row.text("precision").empty()) parts.push_back(row.text("precision"));
  return join(parts);
}

bool is_wrapper(const TableRow& row, const std::string& wrapper) {
  const std::string name = row.text("wrapper");
  return name == wrapper || name.rfind(wrapper + " ", 0) == 0;
}

// Of a case: of "bucketed" the fastest bucket.
TableRow fastest_of(const TableRows& rows, const std::string& wrapper) {
  return rows.if_([&](const TableRow& row) { return is_wrapper(row, wrapper); }).least("step");
}

measure::Table ddp_table(const TableRows& rows) {
  return list(rows, {"wrapper", "forward", "backward", "step", "added", "communication", "exposed",
                     "hidden", "peak memory"});
}

// Whether the weights of a wrapper are a single process's.
AnswerFunction weights_of(const std::string& wrapper) {
  return [wrapper](const Evidence& evidence) -> Finding {
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
    const std::string runs = count_of(rows.size(), "run");
    if (wrong > 0)
      return {.sentences = {str("The weights are NOT those of a single process that took all "
                                "ranks' rows in ",
                                wrong, " of ", runs, ".")}};
    return {.sentences = {
                str("After some steps the weights are those of a single process that took all "
                    "ranks' rows, in ",
                    runs, worst == 0 ? ", bit for bit" : "", "."),
                str("The largest difference is ", three_digits(worst),
                    " of the largest movement of a weight.")}};
  };
}

Finding ddp_naive(const Evidence& evidence) {
  Finding finding = {.picture = {"ddp", "parts"}};
  for (const TableRows& of_case : ddp_rows(evidence).by(kDdpCase)) {
    const TableRow naive = fastest_of(of_case, "naive"), none = fastest_of(of_case, "none");
    if (!naive || finding.sentences.size() == 2) continue;
    const double step = naive.number("step"), sent = naive.number("communication");
    std::string form =
        "One all-reduce for each gradient after backward: a step takes {step|ms} "
        "({case})";
    if (!std::isnan(sent)) form += ", of it communication {communication|ms} ({share})";
    if (none) form += "; ranks that send nothing take {b.step|ms}, so it adds {added}";
    const double added = step / none.number("step");
    finding.sentences.push_back(
        say(form + ".", naive, none,
            {{"case", ranks_case(naive)},
             {"share", percent(sent / step)},
             {"added",
              compare_measured(added, 1) > 0 ? percent(added - 1, 1) : "nothing beyond 2 %"}}));
    if (finding.table.columns.empty()) finding.table = ddp_table(of_case);
  }
  return finding;
}

// The step of one wrapper beside that of others.
struct Beside {
  const char *wrapper, *words;                              // "One all-reduce for all gradients"
  std::vector<std::pair<const char*, const char*>> others;  // wrapper, "one for each gradient"
};
AnswerFunction beside(const Beside& spec) {
  return [spec](const Evidence& evidence) -> Finding {
    Finding finding;
    for (const auto& [other, other_words] : spec.others) {
      Tally steps;
      TableRow a, b;
      for (const TableRows& of_case : ddp_rows(evidence).by(kDdpCase)) {
        const TableRow from = fastest_of(of_case, other), to = fastest_of(of_case, spec.wrapper);
        if (!from || !to) continue;
        steps.add(to.number("step"), from.number("step"));
        a = from, b = to;
        finding.table = ddp_table(of_case);
      }
      if (steps.cases() == 0) continue;
      const double before = a.number("communication"), after = b.number("communication");
      std::string form = finding ? "Beside {other} it is {change}"
                                 : "{words}, beside {other}: the "
                                   "step is {change}";
      form += ", {step|ms} against {b.step|ms}";
      if (!finding) form += " ({case})";
      if (steps.cases() > 1) form += ", {tally}";
      if (before > 0 && after > 0) form += "; communication itself is {sent}";
      finding.sentences.push_back(
          say(form + ".", b, a,
              {{"words", spec.words},
               {"other", other_words},
               {"change", change_words(a.number("step"), b.number("step"))},
               {"case", ranks_case(b)},
               {"tally", steps.words("shorter", "as long within 2 %", "longer")},
               {"sent", change_words(before, after)}}));
    }
    return finding;
  };
}

Finding ddp_traces(const Evidence& evidence) {
  Finding finding = {.picture = {"ddp", "lanes"}};
  for (const TableRows& of_case : ddp_rows(evidence).by(kDdpCase)) {
    const TableRow naive = fastest_of(of_case, "naive"), sent = fastest_of(of_case, "overlapped");
    const double more = sent.number("hidden") - naive.number("hidden");
    if (std::isnan(more) || finding.sentences.size() == 2) continue;
    finding.sentences.push_back(
        say("Of the naive wrapper's communication {hidden|.1} % has computing beside it, of the "
            "overlapped one's {b.hidden|.1} % ({case}): {verdict}.",
            naive, sent,
            {{"case", ranks_case(sent)},
             {"verdict",
              more > 5 ? "backward and communication overlap" : "they do not overlap more"}}));
  }
  return finding;
}

double bucket_size(const TableRow& row) {
  const std::string wrapper = row.text("wrapper");
  const size_t at = wrapper.find(' ');
  return at == std::string::npos ? NAN : std::strtod(wrapper.c_str() + at, nullptr);
}

std::string bucket_words(const TableRow& row) {
  return say("{size} MB ({step|ms})", row, {}, {{"size", three_digits(bucket_size(row))}});
}

Finding ddp_buckets(const Evidence& evidence) {
  Finding finding;
  for (const TableRows& of_case : ddp_rows(evidence).by(kDdpCase)) {
    const TableRows buckets =
        of_case.if_([](const TableRow& row) { return is_wrapper(row, "bucketed"); }).with({"step"});
    if (buckets.size() < 2 || finding.sentences.size() == 2) continue;
    const TableRow fast = buckets.least("step"), slow = buckets.most("step"),
                   single = fastest_of(of_case, "overlapped");
    const int order = compare_measured(fast.number("step"), single.number("step"));
    std::string form =
        "Of {runs} runs with buckets those of {fast} are the fastest and those of "
        "{slow} the slowest, {change} ({case})";
    if (single) form += "; a message for each gradient takes {step|ms}, {verdict}";
    finding.sentences.push_back(
        say(form + ".", single, {},
            {{"runs", str(buckets.size())},
             {"fast", bucket_words(fast)},
             {"slow", bucket_words(slow)},
             {"change", change_words(fast.number("step"), slow.number("step"))},
             {"case", ranks_case(fast)},
             {"verdict", order < 0    ? "so that buckets pay"
                         : order == 0 ? "as long within 2 %"
                                      : "so that buckets do not pay here"}}));
    if (finding.table.columns.empty()) finding.table = ddp_table(buckets);
  }
  return finding;
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
  if (rows.empty()) return {};
  LinkAnswer link{rows.most("algorithm").number("algorithm") * 1e9};
  const TableRow small = rows.least("size");
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

Finding ddp_bucket_model(const Evidence& evidence) {
  const TableRows rows = ddp_rows(evidence);
  const bool gpu = !rows.empty() && rows.front().text("device") != "cpu" &&
                   rows.front().result->made.driver != "";
  const std::string backend = gpu ? "nccl" : "gloo";
  const LinkAnswer link = link_of(evidence, backend);
  if (rows.empty() || !std::isfinite(link.bandwidth)) return {};
  Finding finding = {
      .sentences = {
          "With s bytes in n buckets, w bytes/s and o seconds a call, all but the last bucket hide "
          "behind backward: overhead s / (n w) + n o, least with buckets of s / n = sqrt(s w o) "
          "bytes.",
          str("Measured between 2 ranks with ", backend,
              ": w = ", three_digits(link.bandwidth / 1e9),
              " GB/s, o = ", three_digits(link.overhead * 1e6), " us",
              link.overhead > 0 ? "." : ", so that the model asks for the smallest buckets.")}};
  for (const TableRows& of_case : rows.by(kDdpCase)) {
    const TableRow best = fastest_of(of_case, "bucketed");
    const double bytes = gradient_bytes(of_case.front().text("model"));
    if (!(link.overhead > 0) || std::isnan(bytes) || std::isnan(bucket_size(best)) ||
        finding.sentences.size() == 3) {
      continue;
    }
    const double modelled = std::sqrt(bytes * link.bandwidth * link.overhead) / 1e6;
    const double ratio = bucket_size(best) / modelled;
    finding.sentences.push_back(
        str("For ", ranks_case(best), " that is ", three_digits(modelled),
            " MB; the fastest of those measured is ", three_digits(bucket_size(best)), " MB: ",
            ratio < 4 && ratio > 0.25
                ? "within a factor of four, as near as such a model comes."
                : "the model, which knows neither copies nor other work on the same links, is "
                  "off."));
  }
  return finding;
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

measure::Table sharding_table(const TableRows& rows) {
  return list(rows, {"model", "ranks", "optimizer", "after init", "after update", "gradients",
                     "state", "update", "step", "communication", "exposed"});
}

std::string shard_case(const TableRow& row) {
  return str("`", row.text("optimizer"), "`, ", ranks_case(row));
}

Finding sharding_state(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  std::vector<std::string> uneven;
  const auto both = divided(rows);
  for (const auto& [shard, whole] : both) {
    const double share = shard.number("state") / whole.number("state");
    if (!(share <= 1.02 / shard.number("ranks"))) uneven.push_back(shard_case(shard));
  }
  if (both.empty()) return {};
  const auto& [shard, whole] = both.back();
  const double share = shard.number("state") / whole.number("state");
  return {
      .sentences = {say("A rank of {ranks} holds {state|GiB} of the optimizer's state instead "
                        "of {b.state|GiB}, {share} ({case}).",
                        shard, whole, {{"share", percent(share, 1)}, {"case", shard_case(shard)}}),
                    uneven.empty()
                        ? "It is divided evenly in all " + count_of(both.size(), "case") + "."
                        : "It is NOT divided evenly with " + join(uneven, "; ") + "."},
      .table = sharding_table(rows)};
}

Finding sharding_memory(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  const auto both = divided(rows);
  if (both.empty()) return {};
  const auto& [shard, whole] = both.back();
  const double saved = whole.number("after update") - shard.number("after update");
  const double state = whole.number("state") - shard.number("state");
  return {.sentences = {say("Peak memory after the update goes from {b.after update|GiB} to {after "
                            "update|GiB} ({case}); after initialization it is {b.after init|GiB} "
                            "and {after init|GiB}.",
                            shard, whole, {{"case", shard_case(shard)}}),
                        str("The state itself is ", memory_words(1024 * state), " smaller, ",
                            saved > 0.5 * state
                                ? "which is what the peak loses."
                                : "which the peak does not show: something else sets it."),
                        say("Without shards a rank holds {parameters|GiB} of parameters, "
                            "{gradients|GiB} of gradients and {state|GiB} of the optimizer's "
                            "state.",
                            whole)},
          .table = sharding_table(rows)};
}

Finding sharding_time(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  const auto both = divided(rows);
  if (both.empty()) return {};
  Tally tally;
  for (const auto& [shard, whole] : both) tally.add(shard.number("step"), whole.number("step"));
  const auto& [shard, whole] = *std::min_element(
      both.begin(), both.end(),
      [](const RowPair& a, const RowPair& b) { return a.a.number("step") < b.a.number("step"); });
  Finding finding = {
      .sentences = {say("A step takes {step|ms} with shards and {b.step|ms} without, {change} "
                        "({case}); the update alone {update|ms} and {b.update|ms}.",
                        shard, whole,
                        {{"case", shard_case(shard)},
                         {"change", change_words(whole.number("step"), shard.number("step"))}})},
      .table = sharding_table(rows)};
  const double exposed = shard.number("exposed") / shard.number("communication");
  if (exposed >= 0)
    finding.sentences.push_back(
        say("Of {communication|ms} in which updated parameters travel "
            "{share} have no update beside them.",
            shard, {}, {{"share", percent(exposed)}}));
  if (both.size() > 1)
    finding.sentences.push_back("Over all ways to divide the step is " +
                                tally.words("shorter", "as long within 2 %", "longer") + ".");
  return finding;
}

// What ours does is in the code; what it costs is measured.
Finding sharding_zero(const Evidence& evidence) {
  const TableRows rows = sharding_rows(evidence);
  if (rows.where({{"optimizer", "whole"}}).empty()) return {};
  Finding finding = {
      .sentences = {"`whole` gives each tensor to one rank, all-reduces gradients and broadcasts "
                    "the updated parameters. ZeRO's first stage cuts through tensors instead: it "
                    "reduce-scatters gradients and gathers parameters, (n - 1) / n of the bytes "
                    "each, together one all-reduce."},
      .table = sharding_table(rows)};
  for (const auto& [flat, whole] : pairs(rows, {{"optimizer", "flat"}}, {{"optimizer", "whole"}},
                                         {"model", "ranks", "precision"})) {
    if (finding.sentences.size() == 3) break;
    const int order = compare_measured(flat.number("step"), whole.number("step"));
    finding.sentences.push_back(
        say("`flat` does that here: gradients take {share} of `whole`'s memory, and a step "
            "{step|ms} against {b.step|ms} ({case}): {verdict}.",
            flat, whole,
            {{"share", percent(flat.number("gradients") / whole.number("gradients"))},
             {"case", ranks_case(flat)},
             {"verdict", order < 0    ? "the cut through tensors is faster"
                         : order == 0 ? "both are as fast within 2 %"
                                      : "the cut through tensors is slower"}}));
  }
  return finding;
}

}  // namespace

void add_parallel_answers(Answers& answers) {
  answers["allreduce_sizes"] = allreduce_sizes;
  answers["ddp_naive_weights"] = weights_of("naive");
  answers["ddp_overlap_weights"] = weights_of("overlapped");
  answers["ddp_bucket_weights"] = weights_of("bucketed");
  answers["ddp_naive"] = ddp_naive;
  answers["ddp_flat"] =
      beside({"flat", "One all-reduce for all gradients", {{"naive", "one for each gradient"}}});
  answers["ddp_overlap"] =
      beside({"overlapped",
              "Each gradient sent while backward runs",
              {{"naive", "sending each at the end"}, {"flat", "one flat call at the end"}}});
  answers["ddp_traces"] = ddp_traces;
  answers["ddp_buckets"] = ddp_buckets;
  answers["ddp_bucket_model"] = ddp_bucket_model;
  answers["sharding_state"] = sharding_state;
  answers["sharding_memory"] = sharding_memory;
  answers["sharding_time"] = sharding_time;
  answers["sharding_zero"] = sharding_zero;
}

}  // namespace flashstep::report
