// A chrome trace of some size, of small steps on a GPU as Kineto writes them; read, and made into
// the tables of `flashstep profile --trace`: seconds and memory.
//   profile_chrome_trace_bench [megabytes, 1000] [folder for the file, the system's temporary one]
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/profile/profile.h"
#include "flashstep/profile/profile_sums.h"
#include "flashstep/trace/test_gpu_like_trace.h"
#include "flashstep/trace/trace_events.h"

namespace flashstep::tools {
namespace {

constexpr double kMegabyte = 1e6;

// Steps one after the other, until the file is large enough; how many.
int write_trace(const std::filesystem::path& path, double bytes) {
  constexpr double kStepMicroseconds = 200;
  constexpr int kStepEvents = 100;  // more than there are
  AtomicFile file(path);
  int steps = 0;
  file.write("{\"traceEvents\": [");
  for (; static_cast<double>(file.size_bytes()) < bytes; ++steps) {
    TraceText step(1e6 + kStepMicroseconds * steps, kStepEvents * steps);
    add_gpu_like_step(step);
    file.write((steps == 0 ? "" : ",\n") + step.events());
  }
  file.write("]}\n");
  file.commit();
  return steps;
}

void run(double megabytes, const std::filesystem::path& folder) {
  const auto path = folder / str("flashstep_trace_bench_", getpid(), ".json");
  auto lap = [begin = measure::steady_seconds()](const char* what,
                                                 const std::string& note) mutable {
    const double now = measure::steady_seconds();
    std::printf("%-34s %8.2f s %10.0f MB peak   %s\n", what, now - begin,
                static_cast<double>(measure::peak_resident_bytes()) / kMegabyte, note.c_str());
    std::fflush(stdout);
    measure::reset_peak_resident();
    begin = measure::steady_seconds();
  };
  std::printf("%s\n", measure::one_line(measure::describe_machine()).c_str());
  const int steps = write_trace(path, megabytes * kMegabyte);
  lap("write the file",
      str(fixed(static_cast<double>(std::filesystem::file_size(path)) / kMegabyte, 1), " MB, ",
          steps, " steps"));
  {
    const TraceEvents trace = read_chrome_trace(path);
    lap("read it", str(trace.events.size(), " events kept"));
    const Attribution attribution = attribute(trace);
    lap("find pass and range of each", str(attribution.items.size(), " kernels"));
    const ProfileSums sums = sums_of(trace, attribution);
    lap("add up", str(sums.steps, " steps"));
  }
  measure::reset_peak_resident();  // the events are gone
  const BenchReport report = trace_report(path, /*top=*/10);
  lap("all of it, as profile --trace does", "bound: 10 s, 1000 MB");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace flashstep::tools

int main(int argc, char** argv) {
  const double megabytes = argc > 1 ? std::atof(argv[1]) : 1000;
  flashstep::tools::run(megabytes > 0 ? megabytes : 1000,
                        argc > 2 ? argv[2] : std::filesystem::temp_directory_path().string());
}
