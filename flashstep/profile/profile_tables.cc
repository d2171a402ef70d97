// The tables of `flashstep profile`: times are means of one step over the recorded ones.
#include <algorithm>
#include <cmath>
#include <functional>

#include "flashstep/attention/cost.h"
#include "flashstep/base/text.h"
#include "flashstep/profile/profile.h"

namespace flashstep::tools {
namespace {

using measure::Cell;
using measure::Table;

constexpr Pass kAllPasses[] = {Pass::kForward, Pass::kBackward, Pass::kOptimizer, Pass::kOutside};

// In front of every table's own columns.
Schema profile_case_schema() {
  return {text_key("model"), integer_key("context"), text_key("precision"), text_key("attention"),
          text_key("mode")};
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

using AddRow = std::function<void(std::vector<Cell> cells)>;  // behind those of the case

// A table of all cases: what `rows` adds of each.
Table table_of(const char* title, const std::vector<measure::Column>& columns,
               const std::vector<ProfileCase>& cases,
               const std::function<void(const ProfileCase&, const AddRow&)>& rows) {
  Table table = fill(title, profile_case_schema(), {});
  table.columns.insert(table.columns.end(), columns.begin(), columns.end());
  for (const ProfileCase& c : cases) {
    rows(c, [&](std::vector<Cell> cells) {
      const std::vector<Cell> begin = row_of(profile_case_schema(), blank_of(c), {});
      cells.insert(cells.begin(), begin.begin(), begin.end());
      table.add_row(std::move(cells));
    });
  }
  return table;
}

// Of the cases whose steps were recorded.
Table step_table(
    const char* title, const std::vector<measure::Column>& columns,
    const std::vector<ProfileCase>& cases,
    const std::function<void(const ProfileCase&, const ProfileRun& step, const AddRow&)>& rows) {
  return table_of(title, columns, cases, [&](const ProfileCase& c, const AddRow& add) {
    if (c.step) rows(c, *c.step, add);
  });
}

measure::Column text(const char* name) { return measure::text_column(name); }
measure::Column ms(const std::string& name) { return measure::number_column(name, "ms", 3); }
measure::Column percent(const char* name) { return measure::number_column(name, "%", 1); }
measure::Column calls(const std::string& name) { return measure::number_column(name, "", 1); }

double steps_of(const ProfileRun& run) { return static_cast<double>(run.sums.steps); }

// Nothing rather than 0 where there was no such pass.
Cell time_cell(const ProfileRun& run, const WorkSums& sums) {
  return sums.calls == 0 && sums.seconds == 0 ? Cell()
                                              : Cell(run.milliseconds_a_step(sums.seconds));
}

Cell calls_cell(const ProfileRun& run, const WorkSums& sums) {
  if (sums.calls == 0) return {};
  const double calls = static_cast<double>(sums.calls) / steps_of(run);
  return calls == std::floor(calls) ? Cell(static_cast<int64_t>(calls)) : Cell(calls);
}

Cell share_cell(double part, double whole) { return whole > 0 ? Cell(100 * part / whole) : Cell(); }

// Thousands of millions of one step.
Cell giga_cell(const ProfileRun& run, double all) {
  return all > 0 ? Cell(all / steps_of(run) / 1e9) : Cell();
}

Cell timer_cell(const ProfileRun& run, const std::string& part) {
  const double median = run.timers.median(part);
  return median > 0 ? Cell(median * 1e3) : Cell();
}

// Of kernels, or on a CPU of operators: what ran, not what dispatched it.
WorkSums work_of(const ProfileSums& sums, std::vector<Pass> passes) {
  CellFilter filter{.passes = std::move(passes)};
  for (const WorkClass work_class : all_work_classes()) {
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
  const auto add = [&](const std::string& name, const Cell& timer, double range, double busy,
                       double host, const WorkSums& work) {
    const double kernels = run.milliseconds_a_step(work.seconds);
    Record& row = rows.emplace_back(blank_of(c));
    row.facts = {{"pass", mode + name},
                 {"timer", timer},
                 {"range", run.milliseconds_a_step(range)},
                 {"kernels", kernels},
                 {"busy", run.milliseconds_a_step(busy)},
                 {"host", run.milliseconds_a_step(host)},
                 {"kernels / timer", share_cell(kernels, timer.number())},
                 {"calls", calls_cell(run, work)}};
  };
  double host = 0;
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kOptimizer}) {
    const PassSums& sums = run.sums.passes[static_cast<size_t>(pass)];
    const WorkSums work = work_of(run.sums, {pass});
    if (work.calls == 0 && sums.host_seconds == 0) continue;
    const double on_host = host_seconds(run.sums, pass);
    host += on_host;
    add(pass_name(pass), timer_cell(run, pass_name(pass)), sums.host_seconds, sums.busy_seconds,
        on_host, work);
  }
  if (!run.sums.on_gpu) host += host_seconds(run.sums, Pass::kOutside);
  add("in all", timer_cell(run, "total"), run.sums.wall_seconds, run.sums.busy_seconds, host,
      work_of(run.sums, {}));
}

Schema times_schema(const Records&) {
  Schema schema = profile_case_schema();
  schema.push_back({text("pass"), or_word(fact("pass"))});
  for (const char* name : {"timer", "range", "kernels", "busy", "host"})
    schema.push_back({ms(name), fact(name)});
  schema.push_back({percent("kernels / timer"), fact("kernels / timer")});
  schema.push_back({measure::integer_column("calls"), fact("calls")});
  return schema;
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

// The least time that a class may take, what bounds it, and its share of the time it takes.
struct LimitCells {
  Cell time, by, share;
};
LimitCells limit_cells(const ProfileRun& run, WorkClass work_class, const WorkSums& sums,
                       const ProfileLimits& limits) {
  const bool products = work_class == WorkClass::kMatmul || work_class == WorkClass::kAttention;
  const double compute = products && limits.flops > 0 ? sums.flops / limits.flops : 0;
  const double memory = limits.bytes > 0 ? sums.bytes / limits.bytes : 0;
  const double seconds = std::max(compute, memory);
  if (seconds == 0 || unseen_seconds(run.sums, work_class) > kUnseenShare * sums.seconds) return {};
  return {run.milliseconds_a_step(seconds), compute >= memory ? "compute" : "memory",
          share_cell(seconds, sums.seconds)};
}

void add_class_rows(const ProfileCase& c, const ProfileRun& run, const std::string& work,
                    const AddRow& add) {
  const auto add_row = [&](const char* name, const WorkSums& sums, const LimitCells& limit) {
    add({work, name, run.milliseconds_a_step(sums.seconds),
         share_cell(sums.seconds, run.wall_seconds()), calls_cell(run, sums),
         giga_cell(run, sums.flops), giga_cell(run, sums.bytes), limit.time, limit.by,
         limit.share});
  };
  for (const WorkClass work_class : all_work_classes()) {
    const WorkSums sums = add_up(run.sums, {.classes = {work_class}});
    if (sums.seconds == 0) continue;
    add_row(class_name(work_class), sums, limit_cells(run, work_class, sums, c.limits));
  }
  if (run.sums.on_gpu) add_row("idle", {.seconds = run.idle_seconds()}, {});
}

Table kernels_table(const std::vector<ProfileCase>& cases, int64_t top) {
  std::vector<measure::Column> columns = {text("kernel"), text("class")};
  for (const Pass pass : kAllPasses) {
    columns.push_back(ms(pass_name(pass)));
    columns.push_back(calls(str(pass_name(pass), " calls")));
  }
  columns.insert(columns.end(), {ms("in all"), percent("share")});
  return step_table(
      "Profile: kernels by cumulative time, of one step", columns, cases,
      [top](const ProfileCase&, const ProfileRun& step, const AddRow& add) {
        const double all = add_up(step.sums, {}).seconds;
        std::vector<NameSums> names = by_name(step.sums);
        names.resize(std::min(names.size(), static_cast<size_t>(top)));
        for (const NameSums& row : names) {
          std::vector<Cell> cells = {short_kernel_name(row.name), class_name(row.work_class)};
          for (const WorkSums& pass : row.passes)
            cells.insert(cells.end(), {time_cell(step, pass), calls_cell(step, pass)});
          cells.emplace_back(step.milliseconds_a_step(row.total.seconds));
          cells.push_back(share_cell(row.total.seconds, all));
          add(std::move(cells));
        }
      });
}

Table classes_table(const std::vector<ProfileCase>& cases) {
  return table_of(
      "Profile: classes of work and their limits",
      {text("work"), text("class"), ms("time"), percent("share"), calls("calls"),
       measure::number_column("products", "GFLOP", 2), measure::number_column("traffic", "GB", 3),
       ms("limit"), text("limited by"), percent("of limit")},
      cases, [](const ProfileCase& c, const AddRow& add) {
        if (c.inference) add_class_rows(c, *c.inference, "inference", add);
        if (c.step) add_class_rows(c, *c.step, c.mode(), add);
      });
}

Table shares_table(const std::vector<ProfileCase>& cases) {
  const auto rows = [](const ProfileCase& c, const AddRow& add) {
    if (!c.step || !c.inference) return;
    const auto add_share = [&](const char* name, double of_inference, double of_step) {
      if (of_inference == 0 && of_step == 0) return;
      const double before = 100 * of_inference / c.inference->wall_seconds();
      const double after = 100 * of_step / c.step->wall_seconds();
      add({name, c.inference->milliseconds_a_step(of_inference), before,
           c.step->milliseconds_a_step(of_step), after, after - before});
    };
    for (const WorkClass work_class : all_work_classes()) {
      const CellFilter filter{.classes = {work_class}};
      add_share(class_name(work_class), add_up(c.inference->sums, filter).seconds,
                add_up(c.step->sums, filter).seconds);
    }
    add_share("idle", c.inference->idle_seconds(), c.step->idle_seconds());
  };
  return table_of("Profile: share of time by class, inference beside the full step",
                  {text("class"), ms("inference"), percent("inference share"), ms("step"),
                   percent("step share"), measure::number_column("change", "points", 1)},
                  cases, rows);
}

Table ranges_table(const std::vector<ProfileCase>& cases) {
  std::vector<measure::Column> columns = {text("range")};
  for (const Pass pass : kAllPasses) columns.push_back(ms(pass_name(pass)));
  columns.insert(columns.end(), {percent("share"), measure::number_column("products", "GFLOP", 2)});
  return step_table("Profile: ranges of the model, with what lies in them", columns, cases,
                    [](const ProfileCase&, const ProfileRun& step, const AddRow& add) {
                      const double all = add_up(step.sums, {}).seconds;
                      for (const RangeSums& row : by_range(step.sums)) {
                        std::vector<Cell> cells = {join(step.sums.ranges.path(row.range), " > ")};
                        WorkSums total;
                        for (const WorkSums& pass : row.passes) {
                          cells.push_back(time_cell(step, pass));
                          total += pass;
                        }
                        cells.push_back(share_cell(total.seconds, all));
                        cells.push_back(giga_cell(step, total.flops));
                        add(std::move(cells));
                      }
                    });
}

Table blocks_table(const std::vector<ProfileCase>& cases) {
  return step_table(
      "Profile: blocks", {measure::integer_column("block"), ms("forward"), ms("backward")}, cases,
      [](const ProfileCase&, const ProfileRun& step, const AddRow& add) {
        int64_t block = 0;
        for (const auto& [forward, backward, optimizer, outside] : step.sums.block_seconds) {
          const double in_backward = step.milliseconds_a_step(backward);
          add({block++, step.milliseconds_a_step(forward),
               in_backward > 0 ? Cell(in_backward) : Cell()});
        }
      });
}

// Of one pass of a case that ran the formula.
void add_attention_rows(const ProfileCase& c, const ProfileRun& step, Pass pass,
                        const AddRow& add) {
  const ModelConfig& model = c.workload->model;
  const AttentionSize size{.batches = c.workload->batch_size,
                           .heads = model.num_heads,
                           .kv_heads = model.kv_heads(),
                           .n = model.context_length,
                           .m = model.context_length,
                           .head_dim = model.head_dim()};
  const auto of_classes = [&](const std::vector<WorkClass>& classes) {
    return add_up(step.sums, {.passes = {pass}, .classes = classes, .range = "attention"});
  };
  const WorkSums all = of_classes({});
  if (all.seconds == 0) return;
  const WorkSums products = of_classes({WorkClass::kMatmul});
  WorkSums softmax = of_classes({WorkClass::kSoftmax}), others = all;
  softmax.flops = static_cast<double>(model.num_layers) * steps_of(step) *
                  (pass == Pass::kForward ? attention_softmax_flops(size)
                                          : attention_softmax_backward_flops(size));
  others.seconds -= softmax.seconds + products.seconds;
  const double flops = softmax.flops + products.flops;
  const auto add_part = [&](const char* part, const WorkSums& sums, double work) {
    add({pass_name(pass), part, step.milliseconds_a_step(sums.seconds),
         share_cell(sums.seconds, all.seconds), giga_cell(step, work),
         work > 0 ? share_cell(work, flops) : Cell(),
         work > 0 && sums.seconds > 0 ? Cell(work / sums.seconds / 1e9) : Cell()});
  };
  add_part("matrix products", products, products.flops);
  add_part("softmax", softmax, softmax.flops);
  add_part("scale and mask", others, 0);
}

Table attention_table(const std::vector<ProfileCase>& cases) {
  return step_table(
      "Profile: softmax beside the matrix products of naive attention",
      {text("pass"), text("part"), ms("time"), percent("share"),
       measure::number_column("work", "GFLOP", 3), measure::number_column("share of work", "%", 2),
       measure::number_column("rate", "GFLOP/s", 1)},
      cases, [](const ProfileCase& c, const ProfileRun& step, const AddRow& add) {
        if (!c.workload || c.workload->model.attention != "naive") return;
        for (const Pass pass : {Pass::kForward, Pass::kBackward})
          add_attention_rows(c, step, pass, add);
      });
}

}  // namespace

double ProfileRun::wall_seconds() const {
  if (!sums.on_gpu || !timers.has("total")) return sums.wall_seconds;
  return std::max(timers.median("total") * steps_of(*this), sums.busy_seconds);
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
  benchmark.pictures = [&cases](const Records&) { return profile_pictures(cases); };
  return benchmark;
}

}  // namespace flashstep::tools
