// A job as small as it gets, for other people's launchers: every rank counts to 30 together with
// the others, remembers in DIRECTORY how far they came, and rank 1 kills itself once in the middle.
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "flashstep/base/error.h"
#include "flashstep/base/files.h"
#include "flashstep/comm/group.h"

namespace {

constexpr int kSteps = 30, kDeadlyStep = 12;

int64_t steps_done(const std::filesystem::path& file) {
  return std::filesystem::exists(file) ? std::stoll(flashstep::read_file(file)) : 0;
}

void count(const std::filesystem::path& directory) {
  using flashstep::comm::Reduce;
  const auto environment = flashstep::comm::read_environment();
  flashstep::comm::GroupOptions options;
  options.timeouts.silence = std::chrono::seconds(5);
  options.on_stuck = flashstep::comm::end_process;
  const flashstep::comm::Group group(environment, options);
  const std::filesystem::path progress = directory / "progress", died = directory / "died";
  int64_t step = std::stoll(group.broadcast(std::to_string(steps_done(progress))));
  std::printf("%s: rank %d of %d starts at %d\n", environment.launcher.c_str(), group.rank(),
              group.world_size(), static_cast<int>(step));
  std::fflush(stdout);
  while (step < kSteps) {
    flashstep::require(group.all_reduce(1.0, Reduce::kSum) == group.world_size(), "wrong sum");
    ++step;
    if (group.is_first()) flashstep::write_file(progress, std::to_string(step));
    if (group.rank() == 1 && step == kDeadlyStep && !std::filesystem::exists(died)) {
      flashstep::write_file(died, "");
      std::raise(SIGKILL);
    }
  }
  group.barrier();
  if (group.is_first()) std::printf("all %d ranks counted to %d\n", group.world_size(), kSteps);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    flashstep::require(argc == 2, "expected a directory");
    count(argv[1]);
    return 0;
  } catch (const flashstep::UserError& error) {
    std::fprintf(stderr, "flashstep: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashstep: %s\n", error.what());
    return 1;
  }
}
