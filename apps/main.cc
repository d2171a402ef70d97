// flashstep: from raw text to a trained Transformer language model.
#include <csignal>

#include "apps/program.h"

int main(int argc, char** argv) {
  // A file that outgrows a limit is an error of the write, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  return flashstep::apps::run_program(argc, argv);
}
