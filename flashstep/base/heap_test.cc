#include "flashstep/base/heap.h"

#include <cstdlib>
#include <cstring>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "flashstep/testing/sanitizers.h"

namespace flashstep {
namespace {

long page_faults() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(Heap, GivesTheSamePagesAgain) {
  if (testing::has_a_sanitizers_heap()) GTEST_SKIP() << "sanitizers bring a heap of their own";
  keep_freed_memory();
  constexpr size_t kBytes = 64 << 20;
  const auto use = [] {
    void* volatile block = std::malloc(kBytes);
    std::memset(block, 1, kBytes);
    std::free(block);
  };
  use();
  const long before = page_faults();
  for (int i = 0; i < 10; ++i) use();
  EXPECT_LT(page_faults() - before, 100);  // once per page would be 163,840
}

}  // namespace
}  // namespace flashstep
