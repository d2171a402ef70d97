#include "flashstep/report/bench_attention_grid.h"

#include <algorithm>
#include <cmath>
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
  cell.forward_seconds = rival->turn(Pass::kForward, kWarmup, iterations, 1);
  cell.backward_seconds = rival->turn(Pass::kBackward, kWarmup, iterations, 1);
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
  const AttentionRound round{c, device, kSeed, {random_inputs(c, device, kSeed)}};
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

// Median, p10, p90 in milliseconds, or what went wrong.
void append_times(std::vector<Cell>& cells, const GridCell& cell,
                  const std::vector<double>& seconds) {
  if (seconds.empty()) {
    cells.push_back(cell.trouble.empty() ? Cell()
                                         : Cell(cell.trouble.substr(0, cell.trouble.find(':'))));
    cells.insert(cells.end(), 2, Cell());
    return;
  }
  for (const double q : {0.5, 0.1, 0.9}) cells.push_back(measure::quantile(seconds, q) * 1e3);
}

bool timed(const GridCell& cell) {
  return !cell.forward_seconds.empty() && !cell.backward_seconds.empty();
}

// A forward and a backward pass.
double both_seconds(const GridCell& cell) {
  return measure::median(cell.forward_seconds) + measure::median(cell.backward_seconds);
}

bool is_peer(const GridCell& cell) {
  return cell.contestant != "auto" && cell.contestant != "cuda" && cell.contestant != "cpu" &&
         cell.contestant != "tiled";
}

// The fastest peer's time over this cell's; NaN for a peer, or without one.
double times_best_peer(const std::vector<GridCell>& cells, const GridCell& cell) {
  double best = NAN;
  for (const GridCell& other : cells) {
    if (is_peer(other) && timed(other) && other.c == cell.c)
      best = std::fmin(best, both_seconds(other));
  }
  return is_peer(cell) || !timed(cell) ? NAN : best / both_seconds(cell);
}

std::vector<measure::Column> grid_columns() {
  using measure::integer_column;
  using measure::number_column;
  using measure::text_column;
  return {text_column("contestant"),
          text_column("dtype"),
          integer_column("B"),
          integer_column("D"),
          integer_column("N"),
          number_column("forward", "ms", 3),
          number_column("forward p10", "ms", 3),
          number_column("forward p90", "ms", 3),
          number_column("backward", "ms", 3),
          number_column("backward p10", "ms", 3),
          number_column("backward p90", "ms", 3),
          number_column("rate", "TFLOP/s", 2),
          number_column("of limit", "%", 1),
          number_column("x best peer", "", 2),
          integer_column("passes"),
          number_column("forward peak", "MiB", 1),
          number_column("before backward", "MiB", 1),
          number_column("backward peak", "MiB", 1),
          number_column("after backward", "MiB", 1),
          integer_column("wrong")};
}

measure::Table grid_table(const std::vector<GridCell>& cells, const at::Device& device) {
  measure::Table table;
  table.columns = grid_columns();
  for (const GridCell& cell : cells) {
    std::vector<Cell> row = {cell.contestant, cell.c.dtype, cell.c.batch, cell.c.head_dim,
                             cell.c.n};
    append_times(row, cell, cell.forward_seconds);
    append_times(row, cell, cell.backward_seconds);
    const double seconds = both_seconds(cell), best = times_best_peer(cells, cell);
    const bool there = timed(cell);
    row.push_back(there ? Cell(pass_flops(cell.c, Pass::kBoth) / seconds / 1e12) : Cell());
    row.push_back(there ? Cell(100 * limit_seconds(cell.c, Pass::kBoth, device) / seconds)
                        : Cell());
    row.push_back(std::isfinite(best) ? Cell(best) : Cell());
    row.push_back(there ? Cell(static_cast<int64_t>(cell.forward_seconds.size())) : Cell());
    for (const double bytes :
         {cell.forward_peak, cell.before_backward, cell.backward_peak, cell.after_backward})
      row.push_back(mebibytes(cell, bytes));
    row.push_back(cell.wrong ? Cell(*cell.wrong) : Cell());
    table.add_row(std::move(row));
  }
  return table;
}

// How ours stand to the peers: the last line.
std::string grid_verdict(const std::vector<GridCell>& cells) {
  std::vector<double> ratios;
  for (const GridCell& cell : cells) {
    const double ratio = times_best_peer(cells, cell);
    if (std::isfinite(ratio)) ratios.push_back(ratio);
  }
  if (ratios.empty()) return "Verdict: no cell with ours and a peer.";
  return str("Verdict: a forward and a backward pass of ours are ",
             fixed(measure::geometric_mean(ratios), 2),
             " x the best peer's speed in geometric mean, at least ",
             fixed(*std::min_element(ratios.begin(), ratios.end()), 2), " x, in ", ratios.size(),
             " cells.");
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
  auto time = grid_plot(
      cells, [](const GridCell& cell) { return timed(cell) ? both_seconds(cell) * 1e3 : 0; });
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
      str("Times: medians of single passes, every one waited for; rate, limit and x best peer: a "
          "forward and a backward pass. Memory: tensors beyond the inputs; after backward "
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
  report.table = report.runs = grid_table(cells, device);
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
