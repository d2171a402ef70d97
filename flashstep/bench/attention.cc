#include "flashstep/bench/attention.h"

#include <algorithm>
#include <cmath>

#include "flashstep/attention.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/attention_cases.h"
#include "flashstep/bench/attention_implementations.h"
#include "flashstep/error.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/stats.h"

namespace flashstep::tools {
namespace {

constexpr uint64_t kTurnsSeed = 1;

TurnOptions turn_options(const BenchAttentionOptions& options) {
  if (options.quick) {
    return {.cell_seconds = 1e-4,
            .warmup_seconds = 1e-4,
            .turns = 1,
            .least_samples = 1,
            .most_samples = 3};
  }
  TurnOptions turns;
  if (options.device == "cpu")
    turns = {
        .cell_seconds = 0.5, .warmup_seconds = 0.05, .least_samples = 5, .sample_seconds = 1e-3};
  if (options.preset == "leaderboard") {
    turns.cell_seconds = 10;
    turns.warmup_seconds = 1;
    turns.turns = 10;
    turns.most_samples = 100'000;
  }
  if (options.preset == "sweep") {
    turns.warmup_calls = options.warmup;
    turns.calls = options.iterations;
  }
  return turns;
}

// Sets of inputs that calls take in turn: where a case is so large that its inputs come from memory
// in a program, they do here too.
std::vector<AttentionInputs> rotated_inputs(const AttentionCase& c, const at::Device& device) {
  std::vector<AttentionInputs> inputs;
  const int64_t sets = sets_beyond_cache(pass_bytes(c, "forward"), device);
  for (int64_t i = 0; i < sets; ++i)
    inputs.push_back(random_inputs(c, device, kTurnsSeed + static_cast<uint64_t>(i)));
  return inputs;
}

std::string mask_of(const AttentionCase& c) {
  std::vector<std::string> parts;
  if (c.window > 0) parts.push_back(str("window ", c.window));
  if (c.documents > 0) parts.push_back(str("documents ", c.documents));
  return !parts.empty() ? join(parts, " ") : c.causal ? "causal" : "full";
}

Fields key_of(const AttentionCase& c) {
  using measure::Cell;
  return {{"dtype", c.dtype},  {"B", c.batch}, {"H", c.heads > 0 ? Cell(c.heads) : Cell()},
          {"N", c.n},          {"M", c.m},     {"D", c.head_dim},
          {"mask", mask_of(c)}};
}

// ---- Tables

Schema case_schema() {
  Schema schema;
  for (const char* name : {"dtype", "B", "H", "N", "M", "D", "mask", "pass"}) {
    const bool text = std::string(name).size() > 1;
    schema.push_back(text ? text_key(name) : integer_key(name));
  }
  return schema;
}

Schema rate_schema() {
  return {
      {significant("p10", "ms"), quantile("seconds", 0.1, 1e3)},
      {significant("p90", "ms"), quantile("seconds", 0.9, 1e3)},
      {significant("rate", "TFLOP/s", 3), finite(rate("flops", "seconds", 1e-12))},
      {measure::number_column("of limit", "%", 1), finite(rate("limit seconds", "seconds", 100))}};
}

Schema attention_schema(const Records& records) {
  const CellOf time = or_word(median("seconds", 1e3));
  const auto beside = [](const char* series) {
    return ours(finite(
        [series](const Record& r, const Records& all) { return times_best_peer(r, all, series); }));
  };
  const auto peer = [](const Record& r, const Records& all) {
    const Record* best = best_peer(r, all, "seconds");
    return best != nullptr ? measure::Cell(best->implementation) : measure::Cell();
  };
  Schema schema = case_schema() + Schema{{measure::text_column("ours"), ours(implementation())},
                                         {significant("time", "ms"), ours(time)}};
  for (const SchemaColumn& column : rate_schema())
    schema.push_back({column.column, ours(column.cell)});
  schema = schema + Schema{{measure::text_column("best peer"), peer},
                           {measure::number_column("x best peer", "", 2), beside("seconds")}};
  if (records.find([](const Record& r) { return r.has("graph"); }) != nullptr) {
    schema = schema + Schema{{significant("in a graph", "ms"), ours(median("graph", 1e3))},
                             {measure::number_column("x in a graph", "", 2), beside("graph")}};
  }
  schema = schema + Schema{{measure::integer_column("wrong"), ours(fact("wrong"))},
                           {measure::text_column("auto takes"), fact("chosen")}};
  const Record* first = records.empty() ? nullptr : our_record(records.all().front(), records);
  for (const std::string& name : records.distinct(implementation_of)) {
    const bool has_the_first_place = first != nullptr && name == first->implementation;
    if (!has_the_first_place) schema.push_back({significant(name, "ms"), of(name, time)});
  }
  return schema;
}

Schema runs_schema() {
  using measure::Cell;
  const auto whose = [](const Record& r, const Records&) { return Cell(r.ours ? "ours" : "peer"); };
  const auto samples = [](const Record& r, const Records&) {
    return Cell(r.series("seconds").size());
  };
  const auto failure = [](const Record& r, const Records&) {
    return Cell(r.outcome.measured() ? r.text("no graph") : r.outcome.sentence());
  };
  return case_schema() +
         Schema{{measure::text_column("implementation"), implementation()},
                {measure::text_column("whose"), whose},
                {significant("time", "ms"), or_word(median("seconds", 1e3))}} +
         rate_schema() +
         Schema{{measure::integer_column("samples"), samples},
                {significant("in a graph", "ms"), median("graph", 1e3)},
                {measure::integer_column("wrong"), fact("wrong")},
                {measure::number_column("error", "tolerances", 3), fact("error")},
                {measure::integer_column("checked heads"), fact("checked heads")},
                {measure::text_column("trouble"), failure}};
}

// ---- Sentences

// What it costs that bits repeat. The forward pass is the same.
void add_cost_of_determinism(const Records& records, std::vector<std::string>& sentences) {
  constexpr double kLaunchBound = 512;  // the N up to which a call's time is mostly its launching
  for (const std::string dtype : {"bf16", "fp32"}) {
    const auto ratios = finite_numbers(records, [&](const Record& r, const Records& all) {
      const bool compared = r.implementation == kDeterministic && r.text("dtype") == dtype &&
                            r.text("pass") == "backward" && r.number("N") > kLaunchBound;
      const Record* device_kernel = our_record(r, all);
      return compared && device_kernel != nullptr
                 ? r.median("seconds") / device_kernel->median("seconds")
                 : NAN;
    });
    if (ratios.empty()) continue;
    sentences.push_back(str(dtype, " backward takes ", fixed(measure::geometric_mean(ratios), 2),
                            " x as long where bits must repeat (N > 512, ", ratios.size(),
                            " rows, at most ",
                            fixed(*std::max_element(ratios.begin(), ratios.end()), 2), " x)."));
  }
}

std::vector<std::string> attention_findings(const Records& records) {
  std::vector<std::string> sentences;
  double wrong = 0, wrong_of_peers = 0;
  int64_t checked = 0;
  for (const Record& r : records) {
    const std::string why = r.text("no graph");
    const std::string sentence = str(r.implementation, " is in no graph: ", why, ".");
    if (!why.empty() && !contains(sentences, sentence)) sentences.push_back(sentence);
    if (!r.facts.contains("wrong")) continue;
    (r.ours ? wrong : wrong_of_peers) += r.number("wrong");
    checked += r.ours;
  }
  add_cost_of_determinism(records, sentences);
  sentences.push_back(
      str("Wrong elements: ours ", wrong, " in ", checked, " runs, peers ", wrong_of_peers, "."));
  const auto ratios = finite_numbers(records, [](const Record& r, const Records& all) {
    return &r == our_record(r, all) ? times_best_peer(r, all) : NAN;
  });
  if (ratios.empty()) {
    sentences.emplace_back("Verdict: no row with ours and a peer.");
    return sentences;
  }
  const auto won = std::count_if(ratios.begin(), ratios.end(), [](double r) { return r >= 1; });
  sentences.push_back(str("Verdict: ", fixed(measure::geometric_mean(ratios), 2),
                          " x the best peer in geometric mean, at least ",
                          fixed(*std::min_element(ratios.begin(), ratios.end()), 2),
                          " x; as fast or faster on ", won, " of ", ratios.size(), " rows."));
  return sentences;
}

}  // namespace

std::vector<AttentionCandidate> chosen_candidates(const BenchAttentionOptions& options,
                                                  const at::Device& device) {
  std::vector<AttentionCandidate> all = attention_candidates(device);
  // Compiling for a CPU takes minutes of a small one: only on demand.
  const auto& names = options.implementations;
  const auto wanted = [&](const std::string& name) { return contains(names, name); };
  if (!options.peer_command.empty() && (device.is_cuda() || wanted("compiled")))
    all.push_back(compiled_candidate(options.peer_command));
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const auto& implementation : all) known.push_back(implementation.name);
  for (const std::string& name : names) {
    require(contains(known, name), "[bench attention] expected implementations among ", join(known),
            ", got \"", name, "\"");
  }
  std::erase_if(all, [&](const AttentionCandidate& c) { return !wanted(c.name); });
  return all;
}

double limit_seconds(const AttentionCase& c, const std::string& pass, const std::string& device) {
  return std::max(pass_flops(c, pass) / measure::matmul_limit_flops(device, c.dtype),
                  pass_bytes(c, pass) / measure::memory_limit_bytes_per_s(device));
}

const Record* our_record(const Record& of_case, const Records& all) {
  for (const char* name : {"cuda", "cpu"}) {
    if (const Record* record = all.find(of_case, name)) return record;
  }
  const auto same_case = all.of_case(of_case);
  const auto ours = std::ranges::find_if(same_case, &Record::ours);
  return ours == same_case.end() ? nullptr : *ours;
}

bool is_row(const Record& r, const Records& all) {
  const Record* stands_for_ours = our_record(r, all);
  return stands_for_ours != nullptr ? &r == stands_for_ours : all.is_first_of_case(r);
}

const Record* best_peer(const Record& of_case, const Records& all, const std::string& series) {
  return all.fastest(of_case, series, [](const Record& other) { return !other.ours; });
}

double times_best_peer(const Record& r, const Records& all, const std::string& series) {
  const Record* best = best_peer(r, all, series);
  return best == nullptr ? NAN : best->median(series) / r.median(series);
}

CellOf ours(const CellOf& cell) {
  return [cell](const Record& r, const Records& all) {
    return r.ours ? cell(r, all) : measure::Cell();
  };
}

std::vector<Record> measure_attention(const AttentionCase& c,
                                      const std::vector<std::string>& passes,
                                      const std::vector<AttentionCandidate>& implementations,
                                      const at::Device& device, const TurnOptions& options) {
  AttentionRound round{.c = c, .device = device, .seed = kTurnsSeed};
  round.gradients = passes != std::vector<std::string>{"forward"};
  const TurnsCase turns_case{key_of(c), describe(c), passes};
  std::vector<Candidate> candidates;
  for (const AttentionCandidate& one : implementations)
    candidates.push_back({one.name, one.ours, [&] { return one.make(round); }});
  std::string chosen;
  std::vector<Record> records = take_turns(turns_case, candidates, device, options, [&] {
    round.inputs = rotated_inputs(c, device);
    const AttentionInputs& first = round.inputs[0];
    round.reference.emplace(c, first, round.gradients);
    chosen = attention_auto(
        first.q, first.k, first.v,
        {.causal = c.causal, .window = c.attention_window(), .documents = documents_of(c, device)});
  });
  for (Record& record : records) {
    const std::string pass = record.text("pass");
    record.facts["flops"] = pass_flops(c, pass);
    record.facts["limit seconds"] = limit_seconds(c, pass, device.is_cuda() ? "cuda" : "cpu");
    record.facts["chosen"] = chosen;
    if (round.reference) record.facts["checked heads"] = round.reference->checked_heads();
  }
  return records;
}

Benchmark attention_benchmark(const BenchAttentionOptions& options) {
  const bool on_gpu = options.device == "cuda";
  Benchmark benchmark;
  benchmark.command = "bench attention";
  benchmark.title = str("Attention: ", options.preset, " on ", options.device);
  benchmark.device = options.device;
  benchmark.refusals_are_mistakes = false;  // but what a kernel is not made for
  benchmark.schema = attention_schema;
  benchmark.has_row = is_row;
  benchmark.runs_table = [](const Records& records) {
    return fill("Attention: every run", runs_schema(), records);
  };
  benchmark.how_to_read = {note("attention") + (on_gpu ? note("attention on a GPU") : "")};
  benchmark.findings = attention_findings;
  if (options.quick) return benchmark;
  benchmark.pictures = [preset = options.preset](const Records& records) {
    return attention_pictures(preset, records);
  };
  return benchmark;
}

BenchReport bench_attention(const BenchAttentionOptions& options) {
  if (options.preset == "grid") return bench_attention_grid(options);
  const at::Device device = bench_device("bench attention", options.device);
  const AttentionPreset preset =
      filtered(attention_preset(options.preset, options.pairs), options.filter);
  require(!preset.cases.empty() && !preset.passes.empty(), "[bench attention] expected cases of ",
          options.preset, ", the filter leaves none");
  const auto implementations = chosen_candidates(options, device);
  const TurnOptions settings = turn_options(options);
  const auto stream = stream_of(device);
  limit_seconds(preset.cases[0], preset.passes[0],
                options.device);  // measured now, on a quiet machine
  return run_benchmark(attention_benchmark(options), options.progress, [&](Run& run) {
    for (size_t i = 0; i < preset.cases.size(); ++i) {
      run.begin(i, preset.cases.size(), describe(preset.cases[i]));
      run.add(measure_attention(preset.cases[i], preset.passes, implementations, device, settings));
    }
  });
}

}  // namespace flashstep::tools
