// flashstep: from raw text to a trained Transformer language model.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "apps/program.h"
#include "flashstep/measure/gpu.h"

namespace {

#ifdef __SANITIZE_THREAD__
constexpr bool kSomebodyReportsAtExit = true;
#else
constexpr bool kSomebodyReportsAtExit = false;
#endif

// A thread of OpenMP that waits for others spins for about a millisecond before it sleeps. Beside
// any other program that takes the core from the thread it waits for: a training step of
// quickstart, 106 ms on two idle cores, takes 430 ms there, and 240 with fewer spins (107 idle).
// libgomp reads the number as it is loaded. So the program starts once more with it, here before
// any library has begun, which costs 4 ms.
[[maybe_unused]] void spin_less(int, char** arguments, char** environment) {
  static char fewer_spins[] = "GOMP_SPINCOUNT=10000", ours[] = "FLASHSTEP_CHOSE_SPINS=1";
  constexpr int kMost = 4096;
  static char* with_it[kMost + 3];
  int count = 0;
  for (; environment[count] != nullptr; ++count) {
    for (const char* chosen : {"GOMP_SPINCOUNT=", "OMP_WAIT_POLICY="})
      if (std::strncmp(environment[count], chosen, std::strlen(chosen)) == 0) return;
    if (count == kMost) return;
    with_it[count] = environment[count];
  }
  with_it[count] = fewer_spins;
  with_it[count + 1] = ours;
  if (getauxval(AT_BASE) == 0) return;  // the loader was started by name: it is the process's file
  static char path[4096];
  if (::readlink("/proc/self/exe", path, sizeof path - 1) > 0)
    ::execve(path, arguments, with_it);  // comes back where that cannot be: it goes on as it is
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own start comes later
[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)(int, char**, char**) = spin_less;
#endif

// Programs that this one starts, baselines among them, wait as they do without it.
void keep_spins_from_children() {
  if (std::getenv("FLASHSTEP_CHOSE_SPINS") == nullptr) return;
  ::unsetenv("GOMP_SPINCOUNT");
  ::unsetenv("FLASHSTEP_CHOSE_SPINS");
}

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
  keep_spins_from_children();
  keep_standard_descriptors();
  // A file that outgrows a limit is an error of the write, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = flashstep::apps::run_program(argc, argv);
  // LibTorch's destructors take a fifth of a second to forget its operators one by one. Where there
  // may be a GPU, profilers write what they have at a regular exit.
  if (!flashstep::measure::built_with_cuda() && !kSomebodyReportsAtExit) std::_Exit(code);
  return code;
}
