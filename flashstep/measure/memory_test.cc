#include "flashstep/measure/memory.h"

#include <cstring>
#include <fstream>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace flashstep::measure {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(Memory, PeakSeesWhatWasFreedAndStartsAnew) {
  const uint64_t before = resident_bytes();
  ASSERT_GT(before, 0U);
  // mmap, not new: a sanitizer's allocator keeps freed memory for a while.
  void* block =
      mmap(nullptr, 200 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, 200 * kMiB);
  EXPECT_GE(resident_bytes(), before + 190 * kMiB);
  munmap(block, 200 * kMiB);
  EXPECT_GE(peak_resident_bytes(), before + 190 * kMiB);
  if (!reset_peak_resident()) GTEST_SKIP() << "this kernel cannot reset the peak";
  EXPECT_LT(peak_resident_bytes(), before + 100 * kMiB);
}

TEST(Memory, KillsOfTheKernelAreCounted) {
  const auto kills = oom_kills();
  EXPECT_TRUE(may_have_killed_since(std::nullopt)) << "nobody knows";
  if (!kills) GTEST_SKIP() << "this kernel does not count them";
  EXPECT_FALSE(may_have_killed_since(*kills + 1'000'000));
  EXPECT_TRUE(*kills == 0 || may_have_killed_since(*kills - 1));
}

TEST(Memory, OffersThisProcessFirst) {
  const pid_t child = fork();
  if (child == 0) {
    offer_to_oom_killer();
    int score = 0;
    std::ifstream("/proc/self/oom_score_adj") >> score;
    _exit(score == 1000 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Memory, AvailableIsAPartOfTheMachines) {
  const uint64_t machine =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_GT(available_bytes(), 0U);
  EXPECT_LE(available_bytes(), machine);
}

}  // namespace
}  // namespace flashstep::measure
