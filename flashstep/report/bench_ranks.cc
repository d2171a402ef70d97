#include "flashstep/report/bench_ranks.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <poll.h>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/base/signals.h"
#include "flashstep/comm/child.h"
#include "flashstep/comm/gpus.h"
#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep::report {
namespace {

constexpr const char* kTaskVariable = "FLASHSTEP_BENCH_TASK";
// Rank 0's lines on its stdout, which are not for people.
constexpr std::string_view kResult = "flashstep-result ", kProgress = "flashstep-progress ";
constexpr std::string_view kOurs = "flashstep: ";              // before a sentence on stderr
constexpr std::string_view kVerdict = "flashstep: [launch] ";  // how the launcher names who failed

// The whole lines that a stream has brought.
class Lines {
 public:
  explicit Lines(int descriptor) : descriptor_(descriptor) {}
  ~Lines() { ::close(descriptor_); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  int descriptor() const { return open_ ? descriptor_ : -1; }  // poll() passes over -1
  std::vector<std::string> take() {
    char bytes[65536];
    ssize_t count = 0;
    while (open_ && ((count = read(descriptor_, bytes, sizeof bytes)) > 0 ||
                     (count < 0 && errno == EINTR))) {
      if (count > 0) begun_.append(bytes, static_cast<size_t>(count));
    }
    if (open_ && count == 0) open_ = false;
    std::vector<std::string> lines;
    size_t start = 0;
    for (size_t end; (end = begun_.find('\n', start)) != std::string::npos; start = end + 1) {
      lines.push_back(begun_.substr(start, end - start));
    }
    begun_.erase(0, start);
    return lines;
  }

 private:
  int descriptor_;
  bool open_ = true;
  std::string begun_;
};

// "/proc/self/exe" means this program, in whatever process it is looked up.
std::string absolute(const std::string& program) {
  return program == "/proc/self/exe" ? std::filesystem::read_symlink(program).string() : program;
}

// One rank needs nobody to watch it beside us: a program less to start and to wait for.
Child start_alone(const RankJob& job) {
  const FreePort port;
  Variables variables = variables_of_process();
  for (const auto& [name, value] : job.variables) variables[name] = value;
  variables[kTaskVariable] = job.task;
  ChildOptions child;
  child.command = {absolute(job.program)};
  child.command.insert(child.command.end(), job.arguments.begin(), job.arguments.end());
  child.variables = rank_variables(std::move(variables), /*rank=*/0, /*world_size=*/1, port);
  child.inherited = port.descriptor();
  child.death_signal = SIGTERM;
  return start_child(child);
}

Child start(const RankJob& job) {
  if (job.ranks == 1) return start_alone(job);
  ChildOptions child;
  child.command = {
      job.launcher,         "launch", "-n", std::to_string(job.ranks), "--no-label", "--",
      absolute(job.program)};
  child.command.insert(child.command.end(), job.arguments.begin(), job.arguments.end());
  child.variables = variables_of_process();
  for (const auto& [name, value] : job.variables) child.variables[name] = value;
  child.variables[kTaskVariable] = job.task;
  child.death_signal = SIGTERM;  // it stops the ranks then
  return start_child(child);
}

// The launcher, or the only rank, while it runs.
class Launched {
 public:
  explicit Launched(const RankJob& job)
      : job_(job), child_(start(job)), out_(child_.out), err_(child_.err) {}
  ~Launched() {
    if (ended_) return;
    kill(child_.pid, SIGTERM);
    waitpid(child_.pid, &status_, 0);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  RanksOutcome wait() {
    while (!ended_) {
      pollfd sources[] = {{out_.descriptor(), POLLIN, 0}, {err_.descriptor(), POLLIN, 0}};
      poll(sources, 2, /*ms=*/50);
      ended_ = waitpid(child_.pid, &status_, WNOHANG) == child_.pid;
      pass_on_signal();
      take_lines();  // after the look at its end: what it printed last is there then
    }
    outcome_.exit_code = exit_code(status_);
    if (signal_ != 0 && outcome_.exit_code != 0) {
      throw Interrupted(signal_, "interrupted; the ranks were stopped");
    }
    if (outcome_.exit_code != 0 && outcome_.failure.empty()) {
      outcome_.failure = str(who(), describe_end(status_), last_.empty() ? "" : ": ",
                             last_.substr(last_.starts_with(kOurs) ? kOurs.size() : 0));
    }
    return std::move(outcome_);
  }

 private:
  std::string who() const {
    return job_.ranks == 1 ? str("rank 0 of 1 (process ", child_.pid, ") ")
                           : "the ranks' launcher ";
  }

  void pass_on_signal() {
    const int signal = SignalGuard::received();
    if (signal == 0 || signal_ != 0 || ended_) return;
    signal_ = signal;
    kill(child_.pid, signal);
  }

  void take_lines() {
    for (const std::string& line : out_.take()) {
      if (line.starts_with(kResult)) {
        outcome_.results.push_back(line.substr(kResult.size()));
      } else if (line.starts_with(kProgress)) {
        if (job_.progress) job_.progress(line.substr(kProgress.size()));
      } else {
        std::fprintf(stderr, "%s\n", line.c_str());
      }
    }
    for (const std::string& line : err_.take()) {
      if (line.starts_with(kVerdict)) {
        outcome_.failure = line.substr(kVerdict.size());
      } else {
        std::fprintf(stderr, "%s\n", line.c_str());
        last_ = line;
      }
    }
  }

  const RankJob& job_;
  Child child_;
  Lines out_, err_;
  RanksOutcome outcome_;
  std::string last_;  // line on stderr
  bool ended_ = false;
  int status_ = 0, signal_ = 0;
};

void print_line(std::string_view kind, const std::string& text) {
  const char* rank = std::getenv("RANK");
  if (!rank_task() || rank == nullptr || std::string_view(rank) != "0") return;
  require(text.find('\n') == std::string::npos, "[bench] expected one line, got several: ", text);
  std::printf("%.*s%s\n", static_cast<int>(kind.size()), kind.data(), text.c_str());
  std::fflush(stdout);
}

}  // namespace

RanksOutcome run_ranks(const RankJob& job) {
  require(job.ranks >= 1, "[bench] expected at least 1 rank, got ", job.ranks);
  return Launched(job).wait();
}

std::optional<std::string> rank_task() {
  const char* task = std::getenv(kTaskVariable);
  if (task == nullptr || std::getenv("RANK") == nullptr) return std::nullopt;
  return task;
}

void hand_over(const std::string& result) { print_line(kResult, result); }

void tell_progress(const std::string& line) { print_line(kProgress, line); }

std::unique_ptr<Group> make_rank_group(const std::string& backend, const std::string& device) {
  require(backend == "gloo" || (backend == "nccl" && device == "cuda"),
          "[bench] expected backend gloo, or nccl on device cuda, got ", backend, " on ", device);
  const Environment environment = read_environment();
  GroupOptions options;
  options.on_stuck = end_process;
  if (device == "cuda") {
    const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    const int devices = cuda.deviceCount();
    require(devices > 0, "[bench] expected a GPU for device cuda, got none");
    options.nccl = backend == "nccl";
    options.device_index = gpu_of_rank(devices, environment);
    cuda.setDevice(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(options.device_index)));
  }
  return std::make_unique<Group>(environment, options);
}

}  // namespace flashstep::report
