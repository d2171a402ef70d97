#include <algorithm>
#include <optional>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/report/command.h"
#include "flashstep/report/report.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;

constexpr double kClockSeconds = 1;  // between two looks at the clocks
// A measurement that takes longer than expected stands still shortly before its end.
constexpr double kAlmost = 0.95;

// "@DATA/x" -> "DIRECTORY/data/x"
std::vector<std::string> in_place(std::vector<std::string> words, const fs::path& directory) {
  const std::string mark = "@DATA", data = (directory / "data").string();
  for (std::string& word : words) {
    const size_t at = word.find(mark);
    if (at != std::string::npos) word.replace(at, mark.size(), data);
  }
  return words;
}

// As it would be typed.
std::string command_line(const std::vector<std::string>& words) {
  std::string line = "flashstep";
  for (const std::string& word : words)
    line += word.empty() || word.find(' ') != std::string::npos ? " '" + word + "'" : " " + word;
  return line;
}

// The clocks of the GPU while it works, or what the processor says of its own.
std::string clocks_now() {
  if (const auto state = measure::gpu_state()) return measure::describe(*state);
  std::error_code error;
  if (!fs::exists("/proc/cpuinfo", error)) return "";
  const std::string text = measure::internal::cpuinfo_field(read_file("/proc/cpuinfo"), "cpu MHz");
  return text.empty() ? "" : str("processor at ", text, " MHz");
}

// Of what a measurement wrote, the files that its result does not hold.
void keep_only(const fs::path& folder, const std::vector<std::string>& files) {
  std::error_code error;
  for (const fs::path& file : files_of(folder)) {
    if (!contains(files, file.string())) fs::remove(folder / file, error);
  }
  if (files.empty()) fs::remove_all(folder, error);
}

class Session {
 public:
  Session(const std::vector<Measurement>& measurements, const RunOptions& options)
      : options_(options) {
    if (options.any_machine) others_ = read_results(options.directory).results;
    for (const Measurement& measurement : measurements) {
      const std::string key = key_of(measurement, options.version, options.machine);
      outcome_.keys.push_back(key);
      if (has_result(measurement, key) || was_measured_elsewhere(measurement)) {
        ++outcome_.reused;
        continue;
      }
      todo_.push_back(&measurement);
      total_ += measurement.seconds;
    }
  }

  RunOutcome run() {
    for (size_t i = 0; i < todo_.size() && outcome_.signal == 0; ++i) {
      const Measurement& measurement = *todo_[i];
      if (is_too_long(measurement)) continue;  // a shorter one may still end in time
      place_ = str(i + 1, " of ", todo_.size(), ", ", measurement.name);
      measure(measurement);
      done_ += measurement.seconds;
      if (outcome_.signal == 0) outcome_.signal = SignalGuard::received();
    }
    if (outcome_.signal == 0 && !todo_.empty()) tell(done_, "");
    return std::move(outcome_);
  }

 private:
  void tell(double done, const std::string& note) {
    if (options_.progress) options_.progress(done, total_, note);
  }

  bool has_result(const Measurement& measurement, const std::string& key) {
    const fs::path path = result_file(options_.directory, measurement.name, key);
    if (!fs::exists(path)) return false;
    try {
      return result_from_json(read_file(path), path.string()).failure.empty();
    } catch (const UserError&) {
      std::error_code error;
      fs::rename(path, path.string() + ".damaged", error);
      return false;
    }
  }

  bool is_too_long(const Measurement& measurement) {
    const double end = measure::steady_seconds() - begin_ + measurement.seconds;
    if (options_.most_seconds == 0 || end <= options_.most_seconds) return false;
    outcome_.later.push_back(
        str(measurement.name, ": expected to take ", human_seconds(measurement.seconds)));
    return true;
  }

  bool was_measured_elsewhere(const Measurement& measurement) const {
    const std::string command = command_line(in_place(measurement.arguments, options_.directory));
    // What a commit changes elsewhere is not measured.
    const std::string sources = describe({.commit = "", .sources = options_.version.sources});
    return std::ranges::any_of(others_, [&](const Result& result) {
      return result.measurement == measurement.name && result.failure.empty() &&
             result.made.command == command && result.made.version.ends_with(sources);
    });
  }

  void measure(const Measurement& measurement) {
    const std::string key = key_of(measurement, options_.version, options_.machine);
    const fs::path relative = fs::path("runs") / (measurement.name + "-" + key.substr(0, 12));
    const fs::path folder = options_.directory / relative;
    std::error_code error;
    fs::remove_all(folder, error);  // of a run that was stopped
    make_directories(folder);
    make_directories(options_.directory / "data");
    make_directories(options_.directory / "logs");

    Result result = run_commands(measurement, folder);
    if (outcome_.signal != 0 && (!result.failure.empty() || result.tables.empty())) return;
    result.measurement = measurement.name;
    result.section = measurement.section;
    result.key = key;
    keep_only(folder, result.files);
    for (std::string& file : result.files) file = (relative / file).string();
    if (result.failure.empty())
      ++outcome_.measured;
    else
      outcome_.failed.push_back(measurement.name + ": " + result.failure);
    make_directories(options_.directory / "results");
    write_file(result_file(options_.directory, measurement.name, key), to_json(result));
    if (options_.finished) options_.finished(result);
  }

  Result run_commands(const Measurement& measurement, const fs::path& folder) {
    const double begin = measure::steady_seconds();
    std::string failure;
    for (const auto& before : measurement.before) {
      const auto words = in_place(before, options_.directory);
      if (failure.empty() && !fs::exists(words.back())) failure = run_one(measurement, words);
      if (outcome_.signal != 0) return {};
    }
    auto words = in_place(measurement.arguments, options_.directory);
    const std::string command = command_line(words);
    words.emplace_back("--out");
    words.push_back(measurement.stem_out ? (folder / measurement.name).string() : folder.string());
    if (failure.empty()) failure = run_one(measurement, words);

    Result result;
    try {
      result = collect(folder);
      if (failure.empty() && result.tables.empty()) failure = "it wrote no table";
    } catch (const UserError& error) {
      if (failure.empty()) failure = error.what();
    }
    result.failure = failure;
    result.made = {command,
                   measure::one_line(options_.machine),
                   options_.machine.driver_version,
                   describe(options_.version),
                   clocks_,
                   measure::utc_now("%Y-%m-%d %H:%M:%S UTC"),
                   measure::steady_seconds() - begin};
    return result;
  }

  // What went wrong; empty if nothing did.
  std::string run_one(const Measurement& measurement, const std::vector<std::string>& words) {
    CommandOptions command;
    command.command = options_.program;
    command.command.insert(command.command.end(), words.begin(), words.end());
    command.log = options_.directory / "logs" / (measurement.name + ".txt");
    const double begin = measure::steady_seconds();
    double looked = begin - kClockSeconds;
    command.while_running = [&](const std::string& last_line) {
      const double now = measure::steady_seconds(), most = kAlmost * measurement.seconds;
      tell(done_ + std::min(now - begin, most),
           last_line.empty() ? place_ : place_ + ": " + last_line);
      if (now - looked < kClockSeconds) return;
      looked = now;
      clocks_ = clocks_now();
    };
    const CommandOutcome outcome = run_command(command);
    outcome_.signal = outcome.signal;
    return outcome.failure;
  }

  const RunOptions& options_;
  std::vector<Result> others_;  // what there is, where results of any machine will do
  std::vector<const Measurement*> todo_;
  RunOutcome outcome_;
  std::string place_, clocks_;
  double total_ = 0, done_ = 0;
  const double begin_ = measure::steady_seconds();
};

}  // namespace

RunOutcome run_measurements(const std::vector<Measurement>& measurements,
                            const RunOptions& options) {
  return Session(measurements, options).run();
}

}  // namespace flashstep::tools
