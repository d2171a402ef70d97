#include "flashstep/base/heap.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
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

long resident_pages() {
  std::ifstream file("/proc/self/statm");
  long all = 0, resident = 0;
  file >> all >> resident;
  return resident;
}

TEST(Heap, GivesPagesBackWhenAsked) {
  if (testing::has_a_sanitizers_heap()) GTEST_SKIP() << "sanitizers bring a heap of their own";
  keep_freed_memory();
  constexpr size_t kBytes = 64 << 20, kPages = kBytes / 4096;
  void* volatile block = std::malloc(kBytes);
  void* volatile above = std::malloc(100);  // so that the block is not the heap's end
  std::memset(block, 1, kBytes);
  const long with_it = resident_pages();
  std::free(block);
  EXPECT_GT(resident_pages(), with_it - 1000) << "it is kept";
  give_freed_memory_back();
  EXPECT_LT(resident_pages(), with_it - static_cast<long>(kPages) + 1000);
  std::free(above);
}

}  // namespace
}  // namespace flashstep
