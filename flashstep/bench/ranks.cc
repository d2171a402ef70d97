#include "flashstep/bench/ranks.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/child.h"
#include "flashstep/comm/gpus.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/measure/memory.h"

namespace flashstep::tools {

namespace {

constexpr const char* kTaskVariable = "FLASHSTEP_BENCH_TASK";
// Rank 0's lines on its stdout, which are not for people.
constexpr std::string_view kResult = "flashstep-result ", kProgress = "flashstep-progress ";
constexpr std::string_view kSentence = "flashstep: ";          // before a sentence on stderr
constexpr std::string_view kVerdict = "flashstep: [launch] ";  // how the launcher names who failed

// "/proc/self/exe" means this program, in whatever process it is looked up.
std::string absolute(const std::string& program) {
  return program == "/proc/self/exe" ? std::filesystem::read_symlink(program).string() : program;
}

std::unique_ptr<Subprocess> start(const RankJob& job) {
  ChildOptions child;
  if (job.ranks > 1)
    child.command = {job.launcher, "launch", "-n", std::to_string(job.ranks), "--no-label", "--"};
  child.command.push_back(absolute(job.program));
  child.command.insert(child.command.end(), job.arguments.begin(), job.arguments.end());
  child.variables = variables_of_process();
  // One rank needs nobody to watch it beside us: a program less to start and to wait for.
  if (job.ranks == 1) {
    child.variables =
        rank_variables(std::move(child.variables), /*rank=*/0, /*world_size=*/1, /*port=*/0);
  }
  child.variables[kTaskVariable] = job.task;
  child.death_signal = SIGTERM;  // a launcher stops its ranks then
  return std::make_unique<Subprocess>(child);
}

// The launcher, or the only rank, while it runs.
class Launched {
 public:
  explicit Launched(const RankJob& job)
      : job_(job), kills_(measure::oom_kills()), process_(start(job)) {}

  // Interrupted by a signal.
  Outcome wait() {
    for (bool running = true; running;) {
      running = process_->wait(/*milliseconds=*/50);
      pass_on_signal();
      take_lines();  // after the look at its end: what it printed last is there then
    }
    const int code = exit_code(process_->status());
    if (code == 0 && failure_.empty()) return {};
    if (code != 0 && signal_ != 0)
      throw Interrupted(signal_, "interrupted; the ranks were stopped");
    if (failure_.empty()) {
      failure_ = str(who(), describe_end(process_->status()), last_.empty() ? "" : ": ",
                     last_.substr(last_.starts_with(kSentence) ? kSentence.size() : 0));
    }
    return outcome_of_ranks(failure_, code, job_.ranks, kills_);
  }

 private:
  std::string who() const {
    return job_.ranks == 1 ? str("rank 0 of 1 (process ", process_->pid(), ") ")
                           : "the ranks' launcher ";
  }

  void pass_on_signal() {
    const int signal = SignalGuard::received();
    if (signal == 0 || signal_ != 0) return;
    signal_ = signal;
    process_->kill(signal);
  }

  void take_lines() {
    for (const std::string& line : process_->take_lines()) {
      if (line.starts_with(kResult)) {
        if (job_.result) job_.result(line.substr(kResult.size()));
      } else if (line.starts_with(kProgress)) {
        if (job_.progress) job_.progress(line.substr(kProgress.size()));
      } else {
        std::fprintf(stderr, "%s\n", line.c_str());
      }
    }
    for (const std::string& line : process_->take_errors()) {
      if (line.starts_with(kVerdict)) {
        failure_ = line.substr(kVerdict.size());
      } else {
        std::fprintf(stderr, "%s\n", line.c_str());
        last_ = line;
      }
    }
  }

  const RankJob& job_;
  const std::optional<uint64_t> kills_;  // before they began
  std::unique_ptr<Subprocess> process_;
  std::string failure_;  // in the launcher's words
  std::string last_;     // line on stderr
  int signal_ = 0;
};

void print_line(std::string_view kind, const std::string& text) {
  const char* rank = std::getenv("RANK");
  if (!rank_task() || rank == nullptr || std::string_view(rank) != "0") return;
  require(text.find('\n') == std::string::npos, "[bench] expected one line, got several: ", text);
  std::printf("%.*s%s\n", static_cast<int>(kind.size()), kind.data(), text.c_str());
  std::fflush(stdout);
}

using Json = nlohmann::json;

void take(const Record& part, std::vector<Record>& records) {
  for (Record& record : records) {
    const bool same = record.implementation == part.implementation &&
                      (part.key.empty() || part.key == record.key);
    if (same) record.take(part);
  }
}

}  // namespace

Outcome run_ranks(const RankJob& job) {
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

void begin_unit(const std::string& unit, const Group& group) {
  hand_over(Json({{"begins", unit}}).dump());
  group.barrier("beginning " + unit);
}

void hand_over_record(const Record& record) { hand_over(to_json(record)); }

Outcome run_own_process(const std::vector<std::string>& command, const std::string& task,
                        const std::string& program,
                        const std::function<void(const std::string& result)>& result) {
  RankJob job;
  job.ranks = 1;
  job.arguments = command;
  job.task = task;
  job.program = job.launcher = program;
  job.result = result;
  return run_ranks(job);
}

std::vector<Record> measure_on_ranks(
    RankJob job, const std::function<std::string(const std::vector<std::string>& units)>& task_of,
    std::vector<Record> blanks, const std::function<std::string(const Record&)>& unit_of) {
  std::vector<std::string> units = Records(blanks).distinct(unit_of);
  std::string begun;  // the unit that began last
  std::vector<Record> parts;
  job.result = [&](const std::string& result) {
    const auto json = nlohmann::ordered_json::parse(result);
    if (json.contains("begins"))
      begun = json["begins"];
    else
      parts.push_back(json.get<Record>());
  };
  while (!units.empty()) {
    begun.clear();
    parts.clear();
    job.task = task_of(units);
    const Outcome outcome = run_ranks(job);
    if (outcome.measured()) {
      for (const Record& part : parts) take(part, blanks);
      break;
    }
    const auto is_out = [&](const std::string& unit) { return begun.empty() || unit == begun; };
    for (Record& record : blanks) {
      const std::string unit = unit_of(record);
      if (is_out(unit) && contains(units, unit)) record.outcome = outcome;
    }
    std::erase_if(units, is_out);
  }
  return blanks;
}

void PythonPeer::start() {
  require(failure_.empty(), failure_);
  if (command_.empty()) failure_ = "no program of Python's was given";
  try {
    if (failure_.empty()) {
      process_ = std::make_unique<Subprocess>(
          ChildOptions{.command = command_, .has_input = true, .errors = Errors::kDropped});
      if (!process_->read_line())
        failure_ = str("\"", join(command_, " "), "\" did not start: it needs Python's torch");
    }
  } catch (const MachineError& error) {
    failure_ = error.what();
  }
  if (failure_.empty()) return;
  process_.reset();
  throw UserError(failure_);
}

Json PythonPeer::ask(Json request, const Json& more) {
  if (process_ == nullptr) start();
  request.update(more);
  const auto line = process_->write_line(request.dump()) ? process_->read_line() : std::nullopt;
  if (!line) {
    process_.reset();
    throw MachineError("the Python program ended");
  }
  Json answer = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) throw MachineError("the Python program answered \"" + *line + "\"");
  if (answer.contains("error")) throw MachineError(answer["error"].get<std::string>());
  return answer;
}

std::vector<double> PythonPeer::turn(const Json& request, const std::string& pass, int64_t warmup,
                                     int64_t samples, int64_t calls) {
  return ask(request, {{"do", pass}, {"warmup", warmup}, {"samples", samples}, {"calls", calls}})
      .at("seconds");
}

void PythonPeer::tell_if_running(const Json& request) {
  if (process_ == nullptr) return;
  if (!process_->write_line(request.dump()) || !process_->read_line()) process_.reset();
}

}  // namespace flashstep::tools
