// A plain counter that two threads of ours use, without a lock, in two places:
//   watch  this thread writes, a thread of the group's watch reads: libflashstep, c10d's store and
//          Gloo stand in between
//   hook   a hook of autograd writes, called by LibTorch; a thread of ours reads
// "racing" must be seen; "careful" does the same with an atomic one, and must be silent.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/types.h>

#include "flashstep/comm/watch.h"
#include "flashstep/parallel/gradient_hooks.h"

namespace {

using flashstep::Watch;

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
  store->set(flashstep::kVerdictKey, flashstep::kNoVerdict);
  Watch watch(store, {}, alone());
  Counter launched{0};
  watch.guard([&launched] { return Watch::Launched{static_cast<uint64_t>(launched), 0}; }, [] {});
  for (int i = 0; i < 40; ++i) {  // two seconds: the watch looks and talks several times
    launched = launched + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

template <typename Counter>
void count_in_hook() {
  const at::Tensor weight = torch::ones({2}).requires_grad_();
  Counter fired{0};
  const flashstep::GradientHooks hooks({weight}, [&fired](int64_t) { fired = fired + 1; });
  std::atomic<bool> is_done{false};
  std::atomic<int> seen{0};
  std::thread reader([&] {
    while (!is_done) {
      seen = static_cast<int>(fired);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  for (int i = 0; i < 100; ++i) {  // half a second
    (weight * 2).sum().backward();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  is_done = true;
  reader.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string place = argc == 3 ? argv[1] : "", kind = argc == 3 ? argv[2] : "";
  if ((place != "watch" && place != "hook") || (kind != "racing" && kind != "careful")) {
    std::fprintf(stderr, "expected watch or hook, then racing or careful\n");
    return 2;
  }
  const bool races = kind == "racing";
  if (place == "watch") {
    races ? count_while_watched<int>() : count_while_watched<std::atomic<int>>();
  } else {
    races ? count_in_hook<int>() : count_in_hook<std::atomic<int>>();
  }
  return 0;
}
