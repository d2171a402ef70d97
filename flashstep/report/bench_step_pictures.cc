// The results of `flashstep bench step` as pictures.
#include <algorithm>
#include <map>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_step.h"

namespace flashstep::report {
namespace {

std::string without_slashes(std::string text) {
  std::replace(text.begin(), text.end(), '/', '-');
  return text;
}

// Forward, backward and optimizer of every size, of one context, precision and attention.
void add_parts(const std::vector<const StepResult*>& results, const std::string& key,
               const std::string& footnote, std::vector<NamedPicture>& pictures) {
  const Workload& w = results.front()->task.workload;
  measure::Plot plot;
  plot.title = "A training step in its parts";
  plot.subtitle = str("batch ", w.batch_size, ", context ", w.model.context_length, ", ",
                      w.precision, ", attention ", w.model.attention, "; medians");
  plot.footnote = footnote;
  plot.y.label = "ms";
  const std::pair<const char*, double StepTimes::*> parts[] = {
      {"forward", &StepTimes::forward},
      {"backward", &StepTimes::backward},
      {"optimizer", &StepTimes::optimizer}};
  for (const auto& [name, part] : parts) {
    measure::Series series{.name = name, .kind = measure::Series::Kind::kBars};
    for (const StepResult* r : results) series.y.push_back(measure::median(r->milliseconds(part)));
    plot.series.push_back(std::move(series));
  }
  for (const StepResult* r : results) plot.categories.push_back(shown_model(*r));
  pictures.push_back({"parts_" + without_slashes(key), std::move(plot)});
}

// Every single step of processes that began cold, by how many of them were not counted.
void add_warmup(const std::vector<const StepResult*>& results, const std::string& footnote,
                std::vector<NamedPicture>& pictures) {
  measure::Plot plot;
  plot.title = "Every single step of a process, from its first one on";
  plot.subtitle = describe(results.front()->task.workload);
  plot.footnote = footnote;
  plot.x.label = "step";
  plot.y.label = "ms";
  plot.y.scale = measure::Scale::kLog;
  for (const StepResult* r : results) {
    measure::Series series{.kind = measure::Series::Kind::kLineAndPoints};
    const auto counted = r->milliseconds(&StepTimes::total);
    series.name =
        str(r->task.warmup, " not counted: mean ", fixed(measure::mean(counted), 1), " ms");
    for (const TimedStep& step : r->steps) {
      if (step.turn > 0) break;
      series.x.push_back(static_cast<double>(series.x.size() + 1));
      series.y.push_back(step.times.total * 1e3);
    }
    plot.series.push_back(std::move(series));
  }
  const Workload& w = results.front()->task.workload;
  pictures.push_back(
      {without_slashes(str("warmup_", model_name(w.model), "_n", w.model.context_length, "_",
                           w.precision, "_", w.model.attention, "_", w.mode,
                           results.front()->task.deterministic ? "_deterministic" : "")),
       std::move(plot)});
}

}  // namespace

std::vector<NamedPicture> step_pictures(const std::vector<StepResult>& results,
                                        const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  std::map<std::string, std::vector<const StepResult*>> steps, warmups;
  std::vector<std::string> keys;  // in the order of the results
  for (const StepResult& r : results) {
    if (!r.measured()) continue;
    const Workload& w = r.task.workload;
    const std::string key =
        str("b", w.batch_size, "_n", w.model.context_length, "_", w.precision, "_",
            w.model.attention, r.task.deterministic ? "_deterministic" : "");
    warmups[str(shown_model(r), key, w.mode)].push_back(&r);
    if (!has_update(w) || r.task.warmup != results.front().task.warmup) continue;
    if (!steps.contains(key)) keys.push_back(key);
    steps[key].push_back(&r);
  }
  for (const std::string& key : keys) add_parts(steps[key], key, footnote, pictures);
  for (const auto& [key, of_one_case] : warmups) {
    if (of_one_case.size() > 1) add_warmup(of_one_case, footnote, pictures);
  }
  return pictures;
}

}  // namespace flashstep::report
