// One case of `flashstep memory`: a pass under the observer, and what is read from its trace.
#include <algorithm>
#include <map>
#include <regex>
#include <tuple>

#include "flashstep/bench/model_run.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/gpu_memory.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/measure/memory_observer.h"
#include "flashstep/measure/memory_snapshot.h"
#include "flashstep/profile/memory.h"
#include "flashstep/profiling.h"

namespace flashstep::tools {
namespace {

using at::Tensor;
using measure::Allocation;
using measure::EventRange;
using measure::MemoryKind;
using measure::MemoryObserver;
using measure::MemoryTrace;

constexpr std::string_view kStep = "step/";  // the range of the recorded pass

std::vector<Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

int64_t gradient_bytes(const torch::nn::Module& module) {
  int64_t bytes = 0;
  for (const Tensor& gradient : gradients_of(module))
    if (gradient.defined()) bytes += static_cast<int64_t>(gradient.storage().nbytes());
  return bytes;
}

std::vector<Tensor> state_of(const AdamW& optimizer) {
  std::vector<Tensor> tensors;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adamw = static_cast<const AdamWState&>(*state);
    tensors.insert(tensors.end(), {adamw.step, adamw.exp_avg, adamw.exp_avg_sq});
  }
  return tensors;
}

// A pass as ModelRun::pass() makes it, in a range, with what its parts leave behind labelled. The
// gradients of the one before are gone when it begins.
void labelled_pass(const char* name, ModelRun& run, MemoryObserver& observer) {
  run.optimizer().zero_grad();
  const ScopedRange range(name);
  run.pass([&](ModelRun::Part part) {
    if (part == ModelRun::Part::kBackward)
      observer.label(MemoryKind::kGradients, gradients_of(run.model()));
    if (part == ModelRun::Part::kUpdate)
      observer.label(MemoryKind::kOptimizerState, state_of(run.optimizer()));
  });
}

std::string without_step(const std::string& ranges) {
  return ranges.starts_with(kStep) ? ranges.substr(kStep.size()) : ranges;
}

// "forward/layers.3/norm" -> "forward/layers.*/norm"
std::string of_any_block(const std::string& ranges) {
  static const std::regex block(R"(layers\.[^/]*)");
  return std::regex_replace(ranges, block, "layers.*", std::regex_constants::format_first_only);
}

bool was_there(const Allocation& allocation, EventRange window) {
  const bool began_before_its_end =
      allocation.begin == measure::kNoEvent || allocation.begin < window.end;
  return began_before_its_end && allocation.end >= window.begin;  // kNoEvent is the largest
}

int64_t peak_of(const MemoryTrace& trace, const std::string& pass) {
  const auto* range = measure::find_range(trace, pass);
  return range == nullptr ? 0 : measure::total(measure::peak(trace, range->events).bytes);
}

std::string range_at(const MemoryTrace& trace, uint32_t event) {
  if (event == measure::kNoEvent) return "";
  const Allocation& allocation = trace.allocations[trace.events[event].allocation];
  return without_step(trace.sites[allocation.site].ranges);
}

// A sum of the residual stream and what a block adds is made right in the block's own range, where
// else only scalars are made.
int64_t residual_bytes(const MemoryTrace& trace, const std::string& block_range) {
  int64_t bytes = 0;
  for (const Allocation& allocation : trace.allocations) {
    if (trace.sites[allocation.site].ranges == block_range)
      bytes = std::max<int64_t>(bytes, allocation.bytes);
  }
  return bytes;
}

// The pass, what its block keeps and its largest allocations.
std::vector<Record> read_trace(const MemoryTrace& trace, int64_t block, int64_t largest) {
  const auto* step = measure::find_range(trace, "step");
  require(step != nullptr, "[memory] expected a trace with a step");
  const measure::MemoryMoment peak = measure::peak(trace, step->events);
  const std::string block_range = str("step/forward/layers.", block);
  std::vector<Record> records(1), saved = saved_by_operator(trace, block_range),
                                  allocations = largest_allocations(trace, step->events, largest);
  auto& facts = records.front().facts;
  facts["peak"] = measure::total(peak.bytes);
  for (size_t kind = 0; kind < peak.bytes.size(); ++kind)
    facts[measure::name_of(static_cast<MemoryKind>(kind))] = peak.bytes[kind];
  facts["peak in"] = range_at(trace, peak.event);
  for (const char* pass : {"forward", "backward", "optimizer"})
    facts[str(pass, " peak")] = peak_of(trace, str("step/", pass));
  double all = 0;
  for (const Record& record : saved) all += record.number("saved");
  facts["block"] = block;
  facts["saved"] = all;
  facts["residual"] = residual_bytes(trace, block_range);
  records.insert(records.end(), allocations.begin(), allocations.end());
  records.insert(records.end(), saved.begin(), saved.end());
  return records;
}

void write_files(const MemoryTask& task, const MemoryTrace& trace, const std::string& snapshot) {
  const std::filesystem::path directory = task.directory;
  const std::string name = case_name(task.workload);
  make_directories(directory / name);
  write_file(directory / name / "memory_snapshot.pickle", snapshot);
  const std::string machine = measure::one_line(measure::describe_machine());
  measure::write_plot(
      memory_timeline(trace, measure::find_range(trace, "step")->events,
                      "Memory of " + describe(task.workload), "flashstep memory; " + machine),
      directory / ("memory_timeline_" + name));
}

}  // namespace

std::string case_name(const Workload& w) {
  return str(without_slashes(model_name(w.model)), "_c", w.model.context_length, "_b", w.batch_size,
             "_", w.mode, "_", w.precision, "_", w.model.attention);
}

std::vector<Record> largest_allocations(const MemoryTrace& trace, EventRange window,
                                        int64_t count) {
  // Grouped by what is kept as numbers, then by the words, which are costly, for those that lead.
  std::map<std::tuple<int64_t, MemoryKind, uint32_t, uint32_t>, int64_t> groups;
  for (const Allocation& a : trace.allocations) {
    if (was_there(a, window)) ++groups[{-a.bytes, a.kind, a.site, a.shape}];
  }
  std::vector<Record> largest;
  std::map<std::vector<std::string>, size_t> places;  // of the words
  for (const auto& [key, occurrences] : groups) {
    const auto& [negative_bytes, kind, site_index, shape] = key;
    const bool is_full = static_cast<int64_t>(largest.size()) >= count;
    if (is_full && (largest.empty() || -negative_bytes < largest.back().number("bytes"))) break;
    const measure::MemorySite& site = trace.sites[site_index];
    const std::vector<std::string> words = {
        measure::name_of(kind), trace.shapes[shape], of_any_block(without_step(site.ranges)),
        measure::maker_of(trace, site), measure::source_of(trace, site)};
    std::vector<std::string> line = words;
    line.push_back(std::to_string(negative_bytes));
    if (const auto same = places.find(line); same != places.end()) {
      measure::Cell& all = largest[same->second].facts["count"];
      all = std::get<int64_t>(all.value()) + occurrences;
    } else if (!is_full) {
      places[line] = largest.size();
      Record& record = largest.emplace_back();
      record.implementation = "allocation";
      record.facts = {{"bytes", -negative_bytes}, {"count", occurrences}, {"kind", words[0]},
                      {"shape", words[1]},        {"range", words[2]},    {"made by", words[3]},
                      {"source", words[4]}};
    }
  }
  return largest;
}

std::vector<Record> saved_by_operator(const MemoryTrace& trace, const std::string& ranges) {
  std::map<std::string, int64_t> bytes;
  int64_t all = 0;
  for (const Allocation& a : trace.allocations) {
    const measure::MemorySite& site = trace.sites[a.site];
    if (a.kind != MemoryKind::kActivations || !measure::is_within(site.ranges, ranges)) continue;
    bytes[measure::maker_of(trace, site)] += a.bytes;
    all += a.bytes;
  }
  std::vector<std::pair<std::string, int64_t>> sums(bytes.begin(), bytes.end());
  std::ranges::stable_sort(sums, std::greater(), &std::pair<std::string, int64_t>::second);
  std::vector<Record> saved;
  for (const auto& [maker, sum] : sums) {
    const double share = 100 * static_cast<double>(sum) / static_cast<double>(all);
    const size_t place = saved.size();
    Record& record = saved.emplace_back();
    record.implementation = "saved";
    record.facts = {{"operator", maker}, {"saved", sum}, {"share", share}, {"place", place}};
  }
  return saved;
}

std::vector<Record> measure_memory(const MemoryTask& given) {
  MemoryTask task = given;
  task.workload = resolved_workload(given.workload);
  const at::Device device = current_device(task.workload.device);
  if (device.is_cuda()) measure::record_gpu_memory_history(true);
  MemoryObserver observer(device.type());
  ModelRun run(task.workload);
  observer.label(MemoryKind::kParameters, run.model().parameters());
  for (int64_t i = 0; i < task.warmup; ++i) labelled_pass("warm-up", run, observer);
  if (device.is_cuda()) measure::release_cached_gpu_memory();  // the snapshot is of a step alone
  reset_peak_memory(device);
  labelled_pass("step", run, observer);
  synchronize(device);
  const double on_the_device = peak_memory_bytes(device);
  const int64_t block = task.workload.model.num_layers / 2;
  const int64_t gradients = gradient_bytes(*run.model().layers[block]);
  const MemoryTrace trace = observer.take();
  std::vector<Record> records = read_trace(trace, block, task.largest);
  records.front().facts["on the device"] = on_the_device;
  records.front().facts["block gradients"] = gradients;
  if (!task.directory.empty()) {
    write_files(task, trace,
                device.is_cuda() ? measure::gpu_memory_snapshot() : measure::to_snapshot(trace));
  }
  if (device.is_cuda()) measure::record_gpu_memory_history(false);
  return records;
}

void memory_process(const std::string& text) {
  measure::offer_to_oom_killer();
  for (const Record& record : measure_memory(read_task<MemoryTask>(text)))
    hand_over(to_json(record));
}

}  // namespace flashstep::tools
