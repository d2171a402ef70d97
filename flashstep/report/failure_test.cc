#include "flashstep/report/failure.h"

#include <new>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep::report {
namespace {

TEST(Failure, OfAnException) {
  const auto sentence = [](const auto& error) { return attempt([&] { throw error; }).sentence(); };
  EXPECT_EQ(sentence(std::bad_alloc()), "OOM");
  EXPECT_EQ(sentence(MachineError("CUDA out of memory")), "OOM: CUDA out of memory");
  EXPECT_EQ(sentence(MachineError("it broke\nbadly")), "failed: it broke");
  EXPECT_EQ(sentence(UserError("a head of 10")), "refused: a head of 10");
  EXPECT_EQ(sentence(UserError("refused: too warm")), "refused: too warm");
  EXPECT_EQ(sentence(UserError("OOM: 3 GiB")), "OOM: 3 GiB");
  EXPECT_TRUE(attempt([] {}).measured());
  EXPECT_THROW(attempt([] { throw Interrupted(2, "interrupted"); }), Interrupted);
}

TEST(Failure, OfAProcessAloneInItsOwnWords) {
  const auto alone = [](const std::string& end, int exit_code) {
    return outcome_of_ranks("rank 0 of 1 (process 7) " + end, exit_code, 1, std::nullopt)
        .sentence();
  };
  EXPECT_EQ(alone("was killed by SIGKILL", 1),
            "OOM: rank 0 of 1 (process 7) was killed by SIGKILL");  // nobody says who did
  EXPECT_EQ(alone("ended with exit code 1: out of memory (a smaller model needs less)", 1),
            "OOM: out of memory (a smaller model needs less)");
  EXPECT_EQ(alone("ended with exit code 2: [attention] no: not this", 2),
            "refused: [attention] no: not this");
  EXPECT_EQ(alone("was killed by SIGSEGV", 1),
            "failed: rank 0 of 1 (process 7) was killed by SIGSEGV");
}

TEST(Failure, OfRanks) {
  const std::string lost = "rank 1 of 2 (process 7) ended with exit code 1: the disk is full";
  EXPECT_EQ(outcome_of_ranks(lost, 1, 2, std::nullopt).sentence(), "failed: " + lost);
  EXPECT_EQ(outcome_of_ranks("CUDA out of memory", 1, 2, std::nullopt).word(), "OOM");
}

TEST(Failure, WordsOfAllocators) {
  EXPECT_TRUE(is_out_of_memory("DefaultCPUAllocator: can't allocate memory: you tried 5 bytes"));
  EXPECT_TRUE(is_out_of_memory("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"));
  EXPECT_FALSE(is_out_of_memory("the disk is full"));
}

}  // namespace
}  // namespace flashstep::report
