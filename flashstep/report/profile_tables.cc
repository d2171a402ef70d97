// The tables of `flashstep profile`: times are means of one step over the recorded ones.
#include <algorithm>
#include <cmath>

#include "flashstep/attention/cost.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/profile.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::Table;

constexpr size_t kCaseColumns = 5;  // in front of every table's own
constexpr Pass kAllPasses[] = {Pass::kForward, Pass::kBackward, Pass::kOptimizer, Pass::kOutside};

Table table_of(const char* title, std::vector<measure::Column> columns) {
  Table table;
  table.title = title;
  table.columns = {measure::text_column("model"), measure::integer_column("context"),
                   measure::text_column("precision"), measure::text_column("attention"),
                   measure::text_column("mode")};
  table.columns.insert(table.columns.end(), columns.begin(), columns.end());
  return table;
}

Record blank_of(const ProfileCase& c) {
  Record blank{.key = {{"model", c.name}}, .what = c.name, .facts = {{"case", c.name}}};
  if (!c.workload) return blank;
  const Workload& w = *c.workload;
  blank.key = {{"model", model_name(w.model)},
               {"context", w.model.context_length},
               {"precision", w.precision},
               {"attention", w.model.attention},
               {"mode", w.mode}};
  return blank;
}

void add_row(Table& table, const ProfileCase& c, std::vector<Cell> cells) {
  std::vector<Cell> row;
  for (const auto& [name, value] : blank_of(c).key) row.push_back(value);
  row.resize(kCaseColumns);
  row.insert(row.end(), std::make_move_iterator(cells.begin()),
             std::make_move_iterator(cells.end()));
  table.add_row(std::move(row));
}

double median_of(const ProfileRun& run, double StepTimes::*part) {
  std::vector<double> seconds;
  for (const StepTimes& times : run.timers) seconds.push_back(times.*part);
  return measure::median(seconds);
}

double steps_of(const ProfileRun& run) { return static_cast<double>(run.sums.steps); }
double milliseconds_a_step(const ProfileRun& run, double seconds) {
  return seconds * 1e3 / steps_of(run);
}

// Nothing rather than 0 where there was no such pass.
Cell time_cell(const ProfileRun& run, const WorkSums& sums) {
  return sums.calls == 0 && sums.seconds == 0 ? Cell()
                                              : Cell(milliseconds_a_step(run, sums.seconds));
}

Cell calls_cell(const ProfileRun& run, const WorkSums& sums) {
  if (sums.calls == 0) return {};
  const double calls = static_cast<double>(sums.calls) / steps_of(run);
  return calls == std::floor(calls) ? Cell(static_cast<int64_t>(calls)) : Cell(calls);
}

Cell share_cell(double part, double whole) { return whole > 0 ? Cell(100 * part / whole) : Cell(); }

Cell timer_cell(const ProfileRun& run, double StepTimes::*part) {
  const double median = median_of(run, part);
  return median > 0 ? Cell(median * 1e3) : Cell();
}

// Of kernels, or on a CPU of operators: what ran, not what dispatched it.
WorkSums work_of(const ProfileSums& sums, std::vector<Pass> passes) {
  CellFilter filter{.passes = std::move(passes)};
  for (int i = 0; i < kWorkClasses; ++i) {
    const auto work_class = static_cast<WorkClass>(i);
    if (work_class != WorkClass::kHost) filter.classes.push_back(work_class);
  }
  return add_up(sums, filter);
}

double host_seconds(const ProfileSums& sums, Pass pass) {
  if (sums.on_gpu) return sums.passes[static_cast<size_t>(pass)].host_seconds;
  return add_up(sums, {.passes = {pass}, .classes = {WorkClass::kHost}}).seconds;
}

void add_times(const ProfileCase& c, const ProfileRun& run, const std::string& mode,
               std::vector<Record>& rows) {
  struct Part {
    Pass pass;
    double StepTimes::*timer;
  };
  constexpr Part kParts[] = {{Pass::kForward, &StepTimes::forward},
                             {Pass::kBackward, &StepTimes::backward},
                             {Pass::kOptimizer, &StepTimes::optimizer}};
  const auto add = [&](const std::string& name, const Cell& timer, double range, double busy,
                       double host, const WorkSums& work) {
    const auto* timed = std::get_if<double>(&timer.value());
    const double kernels = milliseconds_a_step(run, work.seconds);
    Record& row = rows.emplace_back(blank_of(c));
    row.facts = {{"pass", mode + name},
                 {"timer", timer},
                 {"range", milliseconds_a_step(run, range)},
                 {"kernels", kernels},
                 {"busy", milliseconds_a_step(run, busy)},
                 {"host", milliseconds_a_step(run, host)},
                 {"kernels / timer", timed != nullptr ? share_cell(kernels, *timed) : Cell()},
                 {"calls", calls_cell(run, work)}};
  };
  double host = 0;
  for (const Part& part : kParts) {
    const PassSums& pass = run.sums.passes[static_cast<size_t>(part.pass)];
    const WorkSums work = work_of(run.sums, {part.pass});
    if (work.calls == 0 && pass.host_seconds == 0) continue;
    const double on_host = host_seconds(run.sums, part.pass);
    host += on_host;
    add(pass_name(part.pass), timer_cell(run, part.timer), pass.host_seconds, pass.busy_seconds,
        on_host, work);
  }
  if (!run.sums.on_gpu) host += host_seconds(run.sums, Pass::kOutside);
  add("in all", timer_cell(run, &StepTimes::total), run.sums.wall_seconds, run.sums.busy_seconds,
      host, work_of(run.sums, {}));
}

Schema times_schema(const Records&) {
  Schema schema = {text_key("model"), integer_key("context"), text_key("precision"),
                   text_key("attention"), text_key("mode")};
  schema.push_back({measure::text_column("pass"), or_word(fact("pass"))});
  for (const char* name : {"timer", "range", "kernels", "busy", "host"})
    schema.push_back({measure::number_column(name, "ms", 3), fact(name)});
  schema.push_back({measure::number_column("kernels / timer", "%", 1), fact("kernels / timer")});
  schema.push_back({measure::integer_column("calls"), fact("calls")});
  return schema;
}

struct Limited {
  double seconds = 0;
  const char* by = "";
};

Limited limit_of(const WorkSums& sums, WorkClass work_class, const ProfileLimits& limits) {
  const bool products = work_class == WorkClass::kMatmul || work_class == WorkClass::kAttention;
  const double compute = products && limits.flops > 0 ? sums.flops / limits.flops : 0;
  const double memory = limits.bytes > 0 ? sums.bytes / limits.bytes : 0;
  return compute >= memory ? Limited{compute, "compute"} : Limited{memory, "memory"};
}

// Of a class: in functions of ours that LibTorch's dispatcher does not see, and whose shapes the
// profiler therefore does not know (on a CPU).
double unseen_seconds(const ProfileSums& sums, WorkClass work_class) {
  double seconds = 0;
  for (const ProfileCell& cell : sums.cells) {
    const bool is_operator =
        cell.name.rfind("aten::", 0) == 0 || cell.name.rfind("flashstep::", 0) == 0;
    if (!sums.on_gpu && cell.work_class == work_class && !is_operator) seconds += cell.sums.seconds;
  }
  return seconds;
}
// Above this share of a class's time the traffic that is known says nothing of its limit.
constexpr double kUnseenShare = 0.05;

void add_class_rows(const ProfileCase& c, const ProfileRun& run, const char* work, Table& table) {
  const double wall = run.wall_seconds();
  for (int i = 0; i < kWorkClasses; ++i) {
    const auto work_class = static_cast<WorkClass>(i);
    const WorkSums sums = add_up(run.sums, {.classes = {work_class}});
    if (sums.seconds == 0) continue;
    const Limited limit = limit_of(sums, work_class, c.limits);
    const bool limited =
        limit.seconds > 0 && unseen_seconds(run.sums, work_class) <= kUnseenShare * sums.seconds;
    add_row(table, c,
            {work, class_name(work_class), milliseconds_a_step(run, sums.seconds),
             share_cell(sums.seconds, wall), calls_cell(run, sums),
             sums.flops > 0 ? Cell(sums.flops / steps_of(run) / 1e9) : Cell(),
             sums.bytes > 0 ? Cell(sums.bytes / steps_of(run) / 1e9) : Cell(),
             limited ? Cell(milliseconds_a_step(run, limit.seconds)) : Cell(),
             limited ? Cell(limit.by) : Cell(),
             limited ? share_cell(limit.seconds, sums.seconds) : Cell()});
  }
  if (run.sums.on_gpu) {
    const double idle = run.idle_seconds();
    add_row(table, c,
            {work, "idle", milliseconds_a_step(run, idle), share_cell(idle, wall), Cell(), Cell(),
             Cell(), Cell(), Cell(), Cell()});
  }
}

bool ran_formula(const ProfileCase& c) {
  return c.step && c.workload && c.workload->model.attention == "naive";
}

}  // namespace

double ProfileRun::wall_seconds() const {
  if (!sums.on_gpu || timers.empty()) return sums.wall_seconds;
  return std::max(median_of(*this, &StepTimes::total) * steps_of(*this), sums.busy_seconds);
}

double ProfileRun::idle_seconds() const {
  return sums.on_gpu ? std::max(wall_seconds() - sums.busy_seconds, 0.0) : 0;
}

std::vector<Record> times_of(const ProfileCase& c, const Outcome& outcome) {
  std::vector<Record> rows;
  if (!outcome.measured()) rows.emplace_back(blank_of(c)).outcome = outcome;
  if (c.inference) add_times(c, *c.inference, "inference, ", rows);
  if (c.step) add_times(c, *c.step, "", rows);
  if (rows.empty()) rows.push_back(blank_of(c));  // nobody recorded
  return rows;
}

Benchmark profile_benchmark(const std::vector<ProfileCase>& cases, int64_t top) {
  Benchmark benchmark;
  benchmark.command = "profile";
  benchmark.title = "Profile: timer, ranges and kernels beside each other";
  benchmark.schema = times_schema;
  benchmark.findings = [&cases](const Records&) { return profile_notes(cases); };
  benchmark.tables = [&cases, top](const Records&) {
    std::vector<NamedTable> tables = {
        {"kernels", kernels_table(cases, top)}, {"classes", classes_table(cases)},
        {"shares", shares_table(cases)},        {"ranges", ranges_table(cases)},
        {"attention", attention_table(cases)},  {"blocks", blocks_table(cases)}};
    std::erase_if(tables, [](const NamedTable& named) { return named.table.rows.empty(); });
    return tables;
  };
  benchmark.pictures = [&cases](const Records&, const std::string& footnote) {
    std::vector<NamedPicture> pictures;
    for (const ProfileCase& c : cases) {
      const std::string name = file_name(c.name);
      if (c.step) {
        pictures.push_back({"flame_" + name, flame_graph(c, *c.step, footnote)});
        pictures.push_back({"shares_" + name, shares_plot(c, footnote)});
      }
      if (c.inference)
        pictures.push_back({"flame_inference_" + name, flame_graph(c, *c.inference, footnote)});
    }
    return pictures;
  };
  return benchmark;
}

Table kernels_table(const std::vector<ProfileCase>& cases, int64_t top) {
  std::vector<measure::Column> columns = {measure::text_column("kernel"),
                                          measure::text_column("class")};
  for (const Pass pass : kAllPasses) {
    columns.push_back(measure::number_column(pass_name(pass), "ms", 3));
    columns.push_back({str(pass_name(pass), " calls"), "", measure::Align::kRight, {.digits = 1}});
  }
  columns.push_back(measure::number_column("in all", "ms", 3));
  columns.push_back(measure::number_column("share", "%", 1));
  Table table = table_of("Profile: kernels by cumulative time, of one step", columns);
  for (const ProfileCase& c : cases) {
    if (!c.step) continue;
    const std::vector<NameSums> rows = by_name(c.step->sums);
    const double all = add_up(c.step->sums, {}).seconds;
    for (size_t i = 0; i < rows.size() && i < static_cast<size_t>(top); ++i) {
      std::vector<Cell> cells = {short_kernel_name(rows[i].name), class_name(rows[i].work_class)};
      for (const WorkSums& pass : rows[i].passes) {
        cells.push_back(time_cell(*c.step, pass));
        cells.push_back(calls_cell(*c.step, pass));
      }
      const double seconds = rows[i].total().seconds;
      cells.emplace_back(milliseconds_a_step(*c.step, seconds));
      cells.push_back(share_cell(seconds, all));
      add_row(table, c, std::move(cells));
    }
  }
  return table;
}

Table classes_table(const std::vector<ProfileCase>& cases) {
  Table table = table_of("Profile: classes of work and their limits",
                         {measure::text_column("work"),
                          measure::text_column("class"),
                          measure::number_column("time", "ms", 3),
                          measure::number_column("share", "%", 1),
                          {"calls", "", measure::Align::kRight, {.digits = 1}},
                          measure::number_column("products", "GFLOP", 2),
                          measure::number_column("traffic", "GB", 3),
                          measure::number_column("limit", "ms", 3),
                          measure::text_column("limited by"),
                          measure::number_column("of limit", "%", 1)});
  for (const ProfileCase& c : cases) {
    if (c.inference) add_class_rows(c, *c.inference, "inference", table);
    if (c.step) add_class_rows(c, *c.step, c.workload ? c.workload->mode.c_str() : "trace", table);
  }
  return table;
}

Table shares_table(const std::vector<ProfileCase>& cases) {
  Table table = table_of(
      "Profile: share of time by class, inference beside the full step",
      {measure::text_column("class"), measure::number_column("inference", "ms", 3),
       measure::number_column("inference share", "%", 1), measure::number_column("step", "ms", 3),
       measure::number_column("step share", "%", 1),
       measure::number_column("change", "points", 1)});
  for (const ProfileCase& c : cases) {
    if (!c.step || !c.inference) continue;
    const auto add = [&](const char* name, double of_inference, double of_step) {
      if (of_inference == 0 && of_step == 0) return;
      const double before = 100 * of_inference / c.inference->wall_seconds();
      const double after = 100 * of_step / c.step->wall_seconds();
      add_row(table, c,
              {name, milliseconds_a_step(*c.inference, of_inference), before,
               milliseconds_a_step(*c.step, of_step), after, after - before});
    };
    for (int i = 0; i < kWorkClasses; ++i) {
      const CellFilter filter{.classes = {static_cast<WorkClass>(i)}};
      add(class_name(static_cast<WorkClass>(i)), add_up(c.inference->sums, filter).seconds,
          add_up(c.step->sums, filter).seconds);
    }
    add("idle", c.inference->idle_seconds(), c.step->idle_seconds());
  }
  return table;
}

Table ranges_table(const std::vector<ProfileCase>& cases) {
  std::vector<measure::Column> columns = {measure::text_column("range")};
  for (const Pass pass : kAllPasses)
    columns.push_back(measure::number_column(pass_name(pass), "ms", 3));
  columns.push_back(measure::number_column("share", "%", 1));
  columns.push_back(measure::number_column("products", "GFLOP", 2));
  Table table = table_of("Profile: ranges of the model, with what lies in them", columns);
  for (const ProfileCase& c : cases) {
    if (!c.step) continue;
    const double all = add_up(c.step->sums, {}).seconds;
    for (const RangeSums& row : by_range(c.step->sums)) {
      std::vector<Cell> cells = {join(c.step->sums.ranges.path(row.range), " > ")};
      WorkSums total;
      for (const WorkSums& pass : row.passes) {
        cells.push_back(time_cell(*c.step, pass));
        total += pass;
      }
      cells.push_back(share_cell(total.seconds, all));
      cells.push_back(total.flops > 0 ? Cell(total.flops / steps_of(*c.step) / 1e9) : Cell());
      add_row(table, c, std::move(cells));
    }
  }
  return table;
}

Table blocks_table(const std::vector<ProfileCase>& cases) {
  Table table = table_of("Profile: blocks", {measure::integer_column("block"),
                                             measure::number_column("forward", "ms", 3),
                                             measure::number_column("backward", "ms", 3)});
  for (const ProfileCase& c : cases) {
    if (!c.step) continue;
    const auto& blocks = c.step->sums.block_seconds;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const double backward = blocks[i][static_cast<size_t>(Pass::kBackward)];
      add_row(table, c,
              {i, milliseconds_a_step(*c.step, blocks[i][static_cast<size_t>(Pass::kForward)]),
               backward > 0 ? Cell(milliseconds_a_step(*c.step, backward)) : Cell()});
    }
  }
  return table;
}

Table attention_table(const std::vector<ProfileCase>& cases) {
  Table table = table_of(
      "Profile: softmax beside the matrix products of naive attention",
      {measure::text_column("pass"), measure::text_column("part"),
       measure::number_column("time", "ms", 3), measure::number_column("share", "%", 1),
       measure::number_column("work", "GFLOP", 3), measure::number_column("share of work", "%", 2),
       measure::number_column("rate", "GFLOP/s", 1)});
  for (const ProfileCase& c : cases) {
    if (!ran_formula(c)) continue;
    const ModelConfig& model = c.workload->model;
    const AttentionSize size{.batches = c.workload->batch_size,
                             .heads = model.num_heads,
                             .kv_heads = model.num_heads,
                             .n = model.context_length,
                             .m = model.context_length,
                             .head_dim = model.head_dim()};
    const double layers = static_cast<double>(model.num_layers) * steps_of(*c.step);
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const CellFilter inside{.passes = {pass}, .range = "attention"};
      const auto of_class = [&](WorkClass work_class) {
        CellFilter filter = inside;
        filter.classes = {work_class};
        return add_up(c.step->sums, filter);
      };
      const WorkSums all = add_up(c.step->sums, inside);
      if (all.seconds == 0) continue;
      WorkSums softmax = of_class(WorkClass::kSoftmax);
      softmax.flops = layers * (pass == Pass::kForward ? attention_softmax_flops(size)
                                                       : attention_softmax_backward_flops(size));
      const WorkSums products = of_class(WorkClass::kMatmul);
      WorkSums others = all;
      others.seconds -= softmax.seconds + products.seconds;
      const double flops = softmax.flops + products.flops;
      const auto add = [&](const char* part, const WorkSums& sums, double work) {
        add_row(table, c,
                {pass_name(pass), part, milliseconds_a_step(*c.step, sums.seconds),
                 share_cell(sums.seconds, all.seconds),
                 work > 0 ? Cell(work / steps_of(*c.step) / 1e9) : Cell(),
                 work > 0 ? share_cell(work, flops) : Cell(),
                 work > 0 && sums.seconds > 0 ? Cell(work / sums.seconds / 1e9) : Cell()});
      };
      add("matrix products", products, products.flops);
      add("softmax", softmax, softmax.flops);
      add("scale and mask", others, 0);
    }
  }
  return table;
}

}  // namespace flashstep::report
