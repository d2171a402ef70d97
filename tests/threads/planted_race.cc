// A plain counter that this thread writes and a thread of the group's watch reads, through all that
// stands in between: libflashstep, c10d's store and Gloo. "careful" does the same with an atomic
// one, and must be silent.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "flashstep/comm/watch.h"

namespace {

using flashstep::comm::Watch;

// The watch of a rank that has nobody to talk to but itself.
Watch::Options alone() {
  Watch::Options options;
  options.timeouts.silence = std::chrono::seconds(60);
  options.names = {"rank 0"};
  options.store_name = "rank 0";
  return options;
}

template <typename Counter>
void count_while_watched() {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->set(flashstep::comm::kVerdictKey, flashstep::comm::kNoVerdict);
  Watch watch(store, {}, alone());
  Counter launched{0};
  watch.guard([&launched] { return Watch::Launched{static_cast<uint64_t>(launched), 0}; }, [] {});
  for (int i = 0; i < 40; ++i) {  // two seconds: the watch looks and talks several times
    launched = launched + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc == 2 ? argv[1] : "";
  if (kind != "racing" && kind != "careful") {
    std::fprintf(stderr, "expected racing or careful\n");
    return 2;
  }
  kind == "racing" ? count_while_watched<int>() : count_while_watched<std::atomic<int>>();
  return 0;
}
