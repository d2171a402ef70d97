#include "flashstep/report/bench_attention_grid.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <torch/csrc/autograd/autograd.h>

#include "flashstep/base/error.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_attention_choice.h"
#include "flashstep/report/bench_attention_race.h"

namespace flashstep::report {
namespace {

constexpr int64_t kBatch = 8, kLongest = 16384;
constexpr int64_t kEndOfDoubling = int64_t{1} << 20;
constexpr int64_t kWarmup = 3;
constexpr double kCpuSeconds = 10;  // of one cell
constexpr uint64_t kGridSeed = 1;

std::vector<AttentionCase> grid_cases(const AttentionFilter& filter) {
  AttentionPreset preset{"grid", {}, {AttentionPass::kForward, AttentionPass::kBackward}};
  const std::vector<std::string> dtypes =
      filter.dtypes.empty() ? std::vector<std::string>{"fp32"} : filter.dtypes;
  for (const auto& dtype : dtypes) {
    for (const int64_t d : {16, 32, 64, 128}) {
      for (const int64_t n : {256, 1024, 4096, 8192, 16384})
        preset.cases.push_back({dtype, kBatch, 0, n, n, d, false});
    }
  }
  return filtered(preset, filter).cases;
}

void wait(const at::Device& device) {
  if (device.is_cuda()) measure::synchronize_gpu(device.index());
}

double allocated(const at::Device& device) {
  return device.is_cuda() ? static_cast<double>(measure::gpu_allocated_bytes()) : 0;
}

double peak(const at::Device& device) {
  return device.is_cuda() ? static_cast<double>(measure::gpu_peak_allocated_bytes()) : 0;
}

// Seconds of `wanted` calls, each waited for, after some that warm up; fewer on a CPU.
std::vector<double> seconds_of(const std::function<void()>& call, const at::Device& device,
                               int64_t wanted) {
  const auto timed = [&] {
    if (const int signal = SignalGuard::received(); signal != 0)
      throw Interrupted(signal, "interrupted");
    wait(device);
    const double start = measure::steady_seconds();
    call();
    wait(device);
    return measure::steady_seconds() - start;
  };
  const double first = timed();
  int64_t passes = wanted;
  if (device.is_cpu()) {
    const auto affordable = static_cast<int64_t>(std::min(kCpuSeconds / 2 / first, 1e6));
    passes = std::min(wanted, std::max<int64_t>(affordable, 1));
  }
  if (passes == 1) return {first};
  for (int64_t i = 1; i < kWarmup; ++i) timed();
  std::vector<double> seconds;
  for (int64_t i = 0; i < passes; ++i) seconds.push_back(timed());
  return seconds;
}

// One forward and one backward pass, with what they allocate.
void weigh(GridCell& cell, const AttentionForward& forward, const std::vector<at::Tensor>& inputs,
           const at::Tensor& grad_out, const at::Device& device, AttentionOutcome& outcome) {
  const double before = allocated(device);
  if (device.is_cuda()) measure::reset_gpu_peak_allocated();
  at::Tensor out = forward(inputs[0], inputs[1], inputs[2]);
  wait(device);
  cell.forward_peak = peak(device) - before;
  cell.before_backward = allocated(device) - before;
  if (device.is_cuda()) measure::reset_gpu_peak_allocated();
  const auto found = torch::autograd::grad({out}, inputs, {grad_out}, /*retain_graph=*/true);
  wait(device);
  cell.backward_peak = peak(device) - before;
  outcome = {out.detach(), found[0], found[1], found[2]};
  out = at::Tensor();  // the graph goes, the output and the gradients stay
  cell.after_backward = allocated(device) - before;
}

void time_tensors(GridCell& cell, const AttentionContestant& contestant,
                  const AttentionRound& round, const AttentionReference& reference,
                  int64_t iterations) {
  const AttentionForward forward = contestant.function(round);
  const auto leaf = [&](const at::Tensor& x) {
    return (contestant.ours ? x.squeeze(1) : x).detach().requires_grad_();
  };
  const auto& set = round.inputs[0];
  const std::vector<at::Tensor> inputs = {leaf(set.q), leaf(set.k), leaf(set.v)};
  const at::Tensor grad_out = contestant.ours ? set.grad_out.squeeze(1) : set.grad_out;
  const auto call = [&] { return forward(inputs[0], inputs[1], inputs[2]); };
  {
    const auto first = call();  // workspaces and handles are made here, not weighed below
    torch::autograd::grad({first}, inputs, {grad_out});
  }
  AttentionOutcome outcome;
  weigh(cell, forward, inputs, grad_out, round.device, outcome);
  cell.wrong = 0;
  for (const int64_t wrong : reference.errors(outcome).wrong) *cell.wrong += wrong;
  outcome = {};
  cell.forward_seconds = seconds_of([&] { call(); }, round.device, iterations);
  const at::Tensor out = call();
  cell.backward_seconds =
      seconds_of([&] { torch::autograd::grad({out}, inputs, {grad_out}, /*retain_graph=*/true); },
                 round.device, iterations);
}

// A process of its own: its memory is not seen.
void time_rival(GridCell& cell, const AttentionContestant& contestant, const AttentionRound& round,
                const AttentionReference& reference, int64_t iterations) {
  const auto rival = contestant.enter(round);
  cell.wrong = 0;
  for (const int64_t wrong : reference.errors(rival->outcome(true)).wrong) *cell.wrong += wrong;
  cell.forward_seconds = rival->turn(AttentionPass::kForward, kWarmup, iterations, 1);
  cell.backward_seconds = rival->turn(AttentionPass::kBackward, kWarmup, iterations, 1);
}

GridCell measure_cell(const AttentionContestant& contestant, const AttentionRound& round,
                      const AttentionReference& reference, int64_t iterations) {
  GridCell cell{.contestant = contestant.name, .c = round.c};
  cell.trouble = trouble_of([&] {
    const auto work = contestant.function ? time_tensors : time_rival;
    work(cell, contestant, round, reference, iterations);
  });
  measure::release_cached_gpu_memory();
  return cell;
}

std::vector<GridCell> measure_case(const AttentionCase& c, const at::Device& device,
                                   const std::vector<AttentionContestant>& contestants,
                                   int64_t iterations) {
  const AttentionRound round{c, device, kGridSeed, {random_inputs(c, device, kGridSeed)}};
  std::vector<GridCell> cells;
  std::optional<AttentionReference> reference;
  const std::string trouble = trouble_of([&] { reference.emplace(c, round.inputs[0], true); });
  measure::release_cached_gpu_memory();
  for (const auto& contestant : contestants) {
    if (reference) {
      cells.push_back(measure_cell(contestant, round, *reference, iterations));
    } else {
      cells.push_back(
          {.contestant = contestant.name, .c = c, .trouble = "no reference: " + trouble});
    }
  }
  return cells;
}

// Doubles N from the longest of the grid until the formula no longer fits.
void find_what_does_not_fit(std::vector<GridCell>& cells, AttentionCase c, const at::Device& device,
                            const std::vector<AttentionContestant>& contestants) {
  while (c.n < kEndOfDoubling) {
    c.n = c.m = 2 * c.n;
    auto more = measure_case(c, device, contestants, /*iterations=*/3);
    cells.insert(cells.end(), more.begin(), more.end());
    if (std::any_of(more.begin(), more.end(), out_of_memory)) return;
  }
}

}  // namespace

AttentionReport bench_attention_grid(const BenchAttentionOptions& options) {
  const at::Device device = attention_device(options.device);
  const auto cases = grid_cases(options.filter);
  require(!cases.empty(), "[bench attention] expected cases of grid, the filter leaves none");
  BenchAttentionOptions chosen = options;
  if (chosen.contestants.empty()) {
    chosen.contestants = {device.is_cuda() ? "cuda" : "cpu", "naive", "sdpa"};
    if (device.is_cuda() && !options.peer_command.empty()) chosen.contestants.push_back("compiled");
  }
  const auto contestants = chosen_contestants(chosen, device);
  const int64_t iterations = options.quick ? 2 : options.passes;
  const SdpaSettings settings;

  AttentionReport report;
  std::vector<GridCell> cells;
  try {
    for (size_t i = 0; i < cases.size(); ++i) {
      if (options.progress) options.progress(i, cases.size(), describe(cases[i]));
      auto more = measure_case(cases[i], device, contestants, iterations);
      cells.insert(cells.end(), more.begin(), more.end());
    }
    const bool naive = std::any_of(cells.begin(), cells.end(),
                                   [](const auto& cell) { return cell.contestant == "naive"; });
    const bool whole = cases.back().n == kLongest && !options.quick;
    if (naive && whole && std::none_of(cells.begin(), cells.end(), out_of_memory)) {
      if (options.progress) options.progress(cases.size(), cases.size(), "longer, until one fails");
      find_what_does_not_fit(cells, cases.front().n == kLongest ? cases.front() : cases.back(),
                             device, contestants);
    }
    if (options.progress) options.progress(cases.size(), cases.size(), "");
  } catch (const Interrupted& interrupted) {
    report.signal = interrupted.signal();
  }

  const measure::Machine machine = measure::describe_machine();
  report.table = report.runs = grid_table(cells, options.device);
  report.table.title = report.runs.title = str("Attention: grid on ", options.device);
  auto& notes = report.table.notes;
  notes = grid_notes(cells);
  const double memory = static_cast<double>(device.is_cuda() ? machine.gpus.at(0).memory_bytes
                                                             : machine.memory_bytes);
  for (auto& sentence : grid_accounting(cells, memory)) notes.push_back(std::move(sentence));
  const auto state = device.is_cuda() ? measure::gpu_state() : std::nullopt;
  notes.push_back(
      str(measure::one_line(machine), state ? "; now " + measure::describe(*state) : "", "."));
  if (report.signal != 0)
    notes.push_back(str("Interrupted: ", cells.size(), " cells were measured."));
  notes.push_back(grid_verdict(cells));
  if (!options.quick) report.pictures = grid_pictures(cells);
  return report;
}

}  // namespace flashstep::report
