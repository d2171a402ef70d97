#include "flashstep/base/heap.h"

#include <cstdlib>
#include <cstring>
#include <sys/resource.h>

#include <gtest/gtest.h>

namespace flashstep {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST(Heap, IsTheSanitizers) { GTEST_SKIP() << "sanitizers bring a heap of their own"; }
#else
long page_faults() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(Heap, GivesTheSamePagesAgain) {
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
#endif

}  // namespace
}  // namespace flashstep
