#include "flashstep/bench/matrix.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/schema.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

using measure::number_column;

std::string attention_name(const Record& r) { return r.text("attention"); }

// For readers, once the size of the buckets is known.
std::string wrapper_name(const Record& r) {
  const double megabytes = r.number("bucket_megabytes");
  return shown_name(wrapper_of(r.implementation), megabytes > 0 ? megabytes : 0);
}

double tokens_per_second(const Record& r) { return r.number("tokens") / r.median("steps"); }

double speed_up(const Record& r, const Records& all) {
  for (const Record& other : all) {
    if (attention_name(other) == attention_name(r) && wrapper_of(other.implementation) == "none")
      return tokens_per_second(r) / tokens_per_second(other);
  }
  return NAN;
}

Schema matrix_schema() {
  const auto wrapper = [](const Record& r, const Records&) {
    return measure::Cell(wrapper_name(r));
  };
  const auto epoch = [](const Record& r, const Records&) {
    return r.median("steps") * r.number("epoch steps");
  };
  const auto tokens = [](const Record& r, const Records&) { return tokens_per_second(r); };
  const auto last_loss = [](const Record& r, const Records&) {
    return r.has("validation loss") ? measure::Cell(r.series("validation loss").back())
                                    : measure::Cell();
  };
  return {text_key("attention"),
          {measure::text_column("wrapper"), wrapper},
          integer_key("ranks"),
          {number_column("step", "ms", 2), or_word(median("steps", 1e3))},
          {number_column("p10", "ms", 2), quantile("steps", 0.1, 1e3)},
          {number_column("p90", "ms", 2), quantile("steps", 0.9, 1e3)},
          {number_column("epoch", "s", 2), finite(epoch)},
          {number_column("tokens", "1/s", 0), finite(tokens)},
          {number_column("speed-up", "", 2), finite(speed_up)},
          {number_column("peak memory", "GiB", 3), fact("peak_bytes", 1 / kGiB)},
          {number_column("validation loss", "nats", 4), last_loss}};
}

std::vector<NamedPicture> matrix_pictures(const Records& records, const std::string& subtitle,
                                          const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  const auto add = [&](const char* name, const char* title, auto picture) {
    picture.title = title;
    picture.subtitle = subtitle;
    picture.footnote = footnote;
    pictures.push_back({name, std::move(picture)});
  };
  const auto add_bars = [&](const char* name, const char* title, const char* unit,
                            const ValueOf& value) {
    measure::Plot plot = bars(records, wrapper_name, attention_name, value);
    plot.y.label = unit;
    add(name, title, std::move(plot));
  };
  add_bars("time", "Time of a training step", "ms", median_of("steps", 1e3));
  add_bars("memory", "Peak memory", "GiB",
           [](const Record& r) { return r.number("peak_bytes") / kGiB; });
  add_bars("throughput", "Tokens a second, all ranks", "tokens/s", tokens_per_second);
  measure::HeatMap map = heat_map(records, wrapper_name, attention_name,
                                  [&](const Record& r) { return speed_up(r, records); });
  map.x_label = "wrapper";
  map.y_label = "attention";
  add("speedup", "Speed-up by wrapper", std::move(map));
  return pictures;
}

std::vector<Record> measure_ranks(const MatrixPlan& plan, Run& run) {
  if (plan.implementations.empty()) return {};
  std::vector<Record> blanks;
  for (const std::string& implementation : plan.implementations) {
    Record& blank = blanks.emplace_back();
    blank.key = {{"attention", attention_of(implementation)},
                 {"division", wrapper_of(implementation)},
                 {"ranks", plan.c.ranks}};
    blank.what = describe(plan.c);
    blank.implementation = implementation;
  }
  return measure_plan(plan, "matrix", std::move(blanks),
                      [&](const std::string& line) { run.tell(describe(plan.c) + ": " + line); });
}

}  // namespace

std::string attention_of(const std::string& implementation) {
  return implementation.substr(0, implementation.find(' '));
}
std::string wrapper_of(const std::string& implementation) {
  return implementation.substr(implementation.find(' ') + 1);
}

BenchMatrixOptions matrix_preset(const std::string& year) {
  BenchMatrixOptions options;
  if (year == "2024") {
    options.axes.models = {"small"};
    options.axes.batch_size = 16;
  } else if (year == "2025") {
    options.axes.models = {"xl"};
    options.axes.contexts = {256};
  } else {
    require(year == "2026", "[bench matrix] expected preset 2024, 2025 or 2026, got \"", year,
            "\"");
    options.axes.models = {"xl26"};
    options.axes.contexts = {512};
  }
  return options;
}

Benchmark matrix_benchmark(const BenchMatrixOptions& options, const ParallelCase& c) {
  const MatrixPlan& plan = options.plan;
  Benchmark benchmark;
  benchmark.command = "bench matrix";
  benchmark.title = "Attention x data parallelism";
  benchmark.device = c.device;
  benchmark.schema = [](const Records&) { return matrix_schema(); };
  benchmark.how_to_read = {note("matrix")};
  benchmark.how =
      str(describe(c), "; ", plan.train, ", ", plan.epochs, plan.epochs == 1 ? " epoch" : " epochs",
          plan.most_steps > 0 ? str(" of at most ", plan.most_steps, " steps") : "");
  benchmark.pictures = [c](const Records& records, const std::string& footnote) {
    return matrix_pictures(records, describe(c), footnote);
  };
  return benchmark;
}

BenchReport bench_matrix(const BenchMatrixOptions& options) {
  const std::vector<ParallelCase> cases = cases_of(options.axes);
  const auto wrappers = division_names(options.wrappers, options.bucket_megabytes);
  for (const ParallelCase& c : cases) check_transports(wrappers, c.device);
  require(cases.size() == 1,
          "[bench matrix] expected one model, context, precision and number of "
          "ranks, got ",
          cases.size(), " combinations");
  // A file that cannot be read is a mistake before any rank is started.
  for (const std::string& file : {options.plan.train, options.plan.validation})
    TokenFile(file, model_of(cases[0]).vocab_size);
  const Benchmark benchmark = matrix_benchmark(options, cases[0]);
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    for (size_t i = 0; i < options.attention.size(); ++i) {
      run.begin(i, options.attention.size(), "attention " + options.attention[i]);
      MatrixPlan alone = options.plan, together = options.plan;
      alone.c = together.c = cases[0];
      alone.c.ranks = 1;
      for (const std::string& wrapper : wrappers)
        (wrapper == "none" ? alone : together)
            .implementations.push_back(options.attention[i] + " " + wrapper);
      run.add(measure_ranks(alone, run));
      run.add(measure_ranks(together, run));
    }
  });
}

}  // namespace flashstep::tools
