// flashstep: from raw text to a trained Transformer language model.
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include "apps/program.h"
#include "flashstep/measure/gpu.h"

namespace {

#ifdef __SANITIZE_THREAD__
constexpr bool kSomebodyReportsAtExit = true;
#else
constexpr bool kSomebodyReportsAtExit = false;
#endif

// A descriptor that the caller closed would be given to the next file that is opened: what is meant
// for a terminal would be written into it. Standard output is opened for reading: writing fails.
void keep_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    ::open("/dev/null", descriptor == 2 ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_descriptors();
  // A file that outgrows a limit is an error of the write, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = flashstep::apps::run_program(argc, argv);
  // LibTorch's destructors take a fifth of a second to forget its operators one by one. Where there
  // may be a GPU, profilers write what they have at a regular exit.
  if (!flashstep::measure::built_with_cuda() && !kSomebodyReportsAtExit) std::_Exit(code);
  return code;
}
