#include "flashstep/report/bench_attention_grid.h"

#include <algorithm>
#include <numeric>

#include "flashstep/base/error.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"

namespace flashstep::report {
namespace {

using Pass = AttentionPass;
using measure::Cell;

constexpr int64_t kBatch = 8, kLongest = 16384;
constexpr int64_t kEndOfDoubling = int64_t{1} << 20;
constexpr int64_t kWarmup = 3;
constexpr double kCpuSeconds = 10;  // of one cell
constexpr uint64_t kSeed = 1;

std::vector<AttentionCase> grid_cases(const AttentionFilter& filter) {
  AttentionPreset preset{"grid", {}, {Pass::kForward, Pass::kBackward}};
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

// Mean seconds of `passes` calls, each waited for, after one that tells how many there is time for.
double mean_seconds(const std::function<void()>& call, const at::Device& device, int64_t wanted,
                    int64_t& passes) {
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
  passes = wanted;
  if (device.is_cpu()) {
    const auto affordable = static_cast<int64_t>(std::min(kCpuSeconds / 2 / first, 1e6));
    passes = std::min(wanted, std::max<int64_t>(affordable, 1));
  }
  if (passes == 1) return first;
  for (int64_t i = 1; i < kWarmup; ++i) timed();
  double total = 0;
  for (int64_t i = 0; i < passes; ++i) total += timed();
  return total / static_cast<double>(passes);
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
                  const AttentionRound& round, AttentionReference& reference,
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
  if (is_formula(contestant)) reference.formula_outcome(outcome);
  cell.wrong = 0;
  for (const int64_t wrong : reference.errors(outcome).wrong) *cell.wrong += wrong;
  outcome = {};
  cell.forward_seconds = mean_seconds([&] { call(); }, round.device, iterations, cell.passes);
  const at::Tensor out = call();
  cell.backward_seconds =
      mean_seconds([&] { torch::autograd::grad({out}, inputs, {grad_out}, /*retain_graph=*/true); },
                   round.device, iterations, cell.passes);
}

// A process of its own: its memory is not seen.
void time_rival(GridCell& cell, const AttentionContestant& contestant, const AttentionRound& round,
                AttentionReference& reference, int64_t iterations) {
  const auto rival = contestant.enter(round);
  cell.wrong = 0;
  for (const int64_t wrong : reference.errors(rival->outcome(true)).wrong) *cell.wrong += wrong;
  cell.passes = iterations;
  cell.forward_seconds = measure::mean(rival->turn(Pass::kForward, kWarmup, iterations, 1));
  cell.backward_seconds = measure::mean(rival->turn(Pass::kBackward, kWarmup, iterations, 1));
}

GridCell measure_cell(const AttentionContestant& contestant, const AttentionRound& round,
                      AttentionReference& reference, int64_t iterations) {
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
  const AttentionRound round{c, device, kSeed, {random_inputs(c, device, kSeed)}};
  AttentionReference reference(c, round.inputs[0], true);
  measure::release_cached_gpu_memory();
  std::vector<GridCell> cells(contestants.size());
  // The formula comes first: its error is the measure of all others'.
  for (const bool formula : {true, false}) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      if (is_formula(contestants[i]) == formula)
        cells[i] = measure_cell(contestants[i], round, reference, iterations);
    }
  }
  return cells;
}

bool out_of_memory(const GridCell& cell) {
  return cell.contestant == "naive" && cell.trouble.rfind("OOM", 0) == 0;
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

Cell mebibytes(const GridCell& cell, double bytes) {
  return bytes > 0 || cell.before_backward > 0 ? Cell(bytes / (1 << 20)) : Cell();
}

Cell milliseconds(const GridCell& cell, double seconds) {
  if (seconds > 0) return seconds * 1e3;
  return cell.trouble.empty() ? Cell() : Cell(cell.trouble.substr(0, cell.trouble.find(':')));
}

measure::Table grid_table(const std::vector<GridCell>& cells) {
  measure::Table table;
  table.columns = {measure::text_column("contestant"),
                   measure::text_column("dtype"),
                   measure::integer_column("B"),
                   measure::integer_column("D"),
                   measure::integer_column("N"),
                   measure::number_column("forward", "ms", 3),
                   measure::number_column("backward", "ms", 3),
                   measure::integer_column("passes"),
                   measure::number_column("forward peak", "MiB", 1),
                   measure::number_column("before backward", "MiB", 1),
                   measure::number_column("backward peak", "MiB", 1),
                   measure::number_column("after backward", "MiB", 1),
                   measure::integer_column("wrong")};
  for (const GridCell& cell : cells) {
    table.add_row({cell.contestant, cell.c.dtype, cell.c.batch, cell.c.head_dim, cell.c.n,
                   milliseconds(cell, cell.forward_seconds),
                   milliseconds(cell, cell.backward_seconds),
                   cell.passes > 0 ? Cell(cell.passes) : Cell(), mebibytes(cell, cell.forward_peak),
                   mebibytes(cell, cell.before_backward), mebibytes(cell, cell.backward_peak),
                   mebibytes(cell, cell.after_backward), cell.wrong ? Cell(*cell.wrong) : Cell()});
  }
  return table;
}

// `value` of each contestant's cells against N, at head dim 64 or the largest.
template <typename Value>
measure::Plot grid_plot(const std::vector<GridCell>& cells, const Value& value) {
  int64_t d = 0;
  for (const auto& cell : cells) d = d == 64 || cell.c.head_dim == 64 ? 64 : cell.c.head_dim;
  measure::Plot plot;
  plot.subtitle = str("batch ", kBatch, ", no heads, head_dim ", d);
  plot.x = {"seq_len", measure::Scale::kLog2, {}};
  for (const auto& cell : cells) {
    if (cell.c.head_dim != d || !(value(cell) > 0)) continue;
    const std::string name = str(cell.contestant, " ", cell.c.dtype);
    auto series = std::find_if(plot.series.begin(), plot.series.end(),
                               [&](const auto& s) { return s.name == name; });
    if (series == plot.series.end()) {
      plot.series.push_back({.name = name, .kind = measure::Series::Kind::kLineAndPoints});
      series = plot.series.end() - 1;
    }
    series->x.push_back(static_cast<double>(cell.c.n));
    series->y.push_back(value(cell));
  }
  return plot;
}

std::vector<NamedPicture> grid_pictures(const std::vector<GridCell>& cells) {
  auto time = grid_plot(cells, [](const GridCell& cell) {
    return cell.backward_seconds > 0 ? (cell.forward_seconds + cell.backward_seconds) * 1e3 : 0;
  });
  time.title = "Attention: a forward and a backward pass";
  time.y = {"ms", measure::Scale::kLog, {}};
  auto memory =
      grid_plot(cells, [](const GridCell& cell) { return cell.before_backward / (1 << 20); });
  memory.title = "Attention: memory before backward, beyond the inputs";
  memory.y = {"MiB", measure::Scale::kLog, {}};
  std::vector<NamedPicture> pictures = {{"time", std::move(time)}};
  if (!memory.series.empty()) pictures.push_back({"memory", std::move(memory)});
  return pictures;
}

std::vector<std::string> grid_notes(const std::vector<GridCell>& cells) {
  std::vector<std::string> notes;
  for (const GridCell& cell : cells) {
    if (cell.trouble.empty() || cell.trouble == "OOM") continue;
    notes.push_back(str(cell.contestant, ", ", describe(cell.c), ": ", cell.trouble, "."));
  }
  const auto wrong = std::accumulate(
      cells.begin(), cells.end(), int64_t{0},
      [](int64_t sum, const GridCell& cell) { return sum + cell.wrong.value_or(0); });
  notes.push_back(
      str("Times: means, every pass waited for. Memory: tensors beyond the inputs; after backward "
          "the output and three gradients are left. Wrong elements of all: ",
          wrong, "."));
  return notes;
}

double gibibytes(double bytes) { return bytes / (1 << 30); }

}  // namespace

std::vector<std::string> grid_accounting(const std::vector<GridCell>& cells, double memory_bytes) {
  const auto failed = std::find_if(cells.begin(), cells.end(), out_of_memory);
  if (failed == cells.end()) return {};
  const auto matrix = [](const GridCell& cell) {
    return attention_matrix_bytes(size_of(cell.c), element_bytes(cell.c));
  };
  const double needed = matrix(*failed);
  std::vector<std::string> sentences = {
      str("The first that does not fit: naive, ", describe(failed->c), ". One (B, N, N) matrix is ",
          failed->c.batch, " x ", failed->c.n, "^2 x ", element_bytes(failed->c),
          " bytes = ", fixed(gibibytes(needed), 2), " GiB; the device has ",
          fixed(gibibytes(memory_bytes), 1), " GiB.")};
  // What a smaller one held, in matrices: its vectors are nothing beside them.
  const GridCell* largest = nullptr;
  for (const GridCell& cell : cells) {
    const bool fitted = cell.contestant == "naive" && cell.trouble.empty() &&
                        cell.c.dtype == failed->c.dtype && cell.before_backward > 0;
    if (fitted && (largest == nullptr || cell.c.n > largest->c.n)) largest = &cell;
  }
  if (largest == nullptr) return sentences;
  const double unit = matrix(*largest);
  const auto count = [&](double bytes) { return fixed(bytes / unit, 2); };
  sentences.push_back(
      str("At N ", largest->c.n, " the forward pass held ", count(largest->forward_peak),
          " such matrices at once (scores, scaled scores, weights) and kept ",
          count(largest->before_backward), " for backward; backward held ",
          count(largest->backward_peak), " (those, and the gradients of weights and scores): at N ",
          failed->c.n, " that is ", fixed(gibibytes(largest->backward_peak / unit * needed), 1),
          " GiB."));
  sentences.push_back(str(
      "Backward gave back ",
      fixed(gibibytes(largest->before_backward - largest->after_backward), 2), " of the ",
      fixed(gibibytes(largest->before_backward), 2), " GiB that were kept at N ", largest->c.n,
      "; ", fixed(largest->after_backward / (1 << 20), 0), " MiB of output and gradients stay."));
  return sentences;
}

AttentionReport bench_attention_grid(const BenchAttentionOptions& options) {
  const at::Device device = attention_device(options.device);
  const auto cases = grid_cases(options.filter);
  require(!cases.empty(), "[bench attention] expected cases of grid, the filter leaves none");
  BenchAttentionOptions chosen = options;
  if (chosen.contestants.empty()) {
    chosen.contestants = {"auto", "naive", "sdpa"};
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
  report.table = report.runs = grid_table(cells);
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
  if (!options.quick) report.pictures = grid_pictures(cells);
  return report;
}

}  // namespace flashstep::report
