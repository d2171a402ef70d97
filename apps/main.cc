// flashstep: from raw text to a trained Transformer language model.
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

#include "apps/program.h"

namespace {

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
  return flashstep::apps::run_program(argc, argv);
}
