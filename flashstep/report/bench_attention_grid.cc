#include "flashstep/report/bench_attention_grid.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <torch/csrc/autograd/autograd.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/cpu_memory.h"
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

// Bytes of tensors on a device, from here on.
class Scales {
 public:
  explicit Scales(const at::Device& device) : device_(device) {
    if (device.is_cpu()) cpu_.emplace();
    before_ = on_gpu(measure::gpu_allocated_bytes);
  }
  double now() const {
    return cpu_ ? as_double(cpu_->now()) : on_gpu(measure::gpu_allocated_bytes);
  }
  double peak() const {
    return cpu_ ? as_double(cpu_->peak()) : on_gpu(measure::gpu_peak_allocated_bytes);
  }
  void reset_peak() {
    if (cpu_) {
      cpu_->reset_peak();
    } else {
      measure::reset_gpu_peak_allocated(device_.index());
    }
  }

 private:
  static double as_double(int64_t bytes) { return static_cast<double>(bytes); }
  double on_gpu(uint64_t (*bytes)(int)) const {
    return cpu_ ? 0 : static_cast<double>(bytes(device_.index())) - before_;
  }

  at::Device device_;
  std::optional<measure::AllocatedBytes> cpu_;
  double before_ = 0;
};

// One forward and one backward pass, with what they allocate.
void weigh(GridCell& cell, const AttentionForward& forward, const std::vector<at::Tensor>& inputs,
           const at::Tensor& grad_out, const at::Device& device, AttentionOutcome& outcome) {
  Scales scales(device);
  scales.reset_peak();
  at::Tensor out = forward(inputs[0], inputs[1], inputs[2]);
  wait(device);
  cell.forward_peak = scales.peak();
  cell.before_backward = scales.now();
  scales.reset_peak();
  const auto found = torch::autograd::grad({out}, inputs, {grad_out}, /*retain_graph=*/true);
  wait(device);
  cell.backward_peak = scales.peak();
  outcome = {out.detach(), found[0], found[1], found[2]};
  out = at::Tensor();  // the graph goes, the output and the gradients stay
  cell.after_backward = scales.now();
}

int64_t wrong_elements(const AttentionReference& reference, const AttentionOutcome& outcome) {
  const auto wrong = reference.errors(outcome).wrong;
  return std::accumulate(wrong.begin(), wrong.end(), int64_t{0});
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
  cell.wrong = wrong_elements(reference, outcome);
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
  cell.wrong = wrong_elements(reference, rival->outcome(true));
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

// Ours, or the reference that all are held against.
std::string failure_of_ours(const std::vector<GridCell>& cells,
                            const std::vector<AttentionContestant>& contestants) {
  for (const GridCell& cell : cells) {
    const bool ours = std::any_of(contestants.begin(), contestants.end(), [&](const auto& one) {
      return one.ours && one.name == cell.contestant;
    });
    if (ours && cell.trouble.find("failed: ") != std::string::npos)
      return str("[bench attention] ", describe(cell.c), ", ", cell.contestant, " ", cell.trouble);
  }
  return "";
}

}  // namespace

AttentionReport bench_attention_grid(const BenchAttentionOptions& options) {
  const at::Device device = attention_device(options.device);
  require(options.filter.passes.empty(),
          "[bench attention] expected no --pass with preset grid, which measures forward and "
          "backward in one, got ",
          options.filter.passes.size(), options.filter.passes.size() == 1 ? " pass" : " passes");
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
  measure_until_failure(report, [&] {
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
  });
  if (report.failure.empty()) report.failure = failure_of_ours(cells, contestants);

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
  if (!report.failure.empty()) notes.push_back("Failed: " + report.failure + ".");
  notes.push_back(grid_verdict(cells));
  if (!options.quick) report.pictures = grid_pictures(cells);
  return report;
}

}  // namespace flashstep::report
