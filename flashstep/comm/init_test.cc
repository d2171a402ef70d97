// init(): joins whatever this process was started among.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/group.h"
#include "flashstep/testing/gpus.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

TEST(Init, AloneIsOneProcess) {
  ::testing::internal::CaptureStderr();
  const Group group = init();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(group.world_size(), 1);
  EXPECT_EQ(group.device().is_cuda(), visible_gpus() > 0);
  EXPECT_EQ(said, flashstep::str("[flashstep] 1 process on ", group.device(), "\n"));
}

TEST(Init, ABrokenEnvironmentIsASentence) {
  for (const char* setting : {"RANK=3", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"})
    ::putenv(const_cast<char*>(setting));
  testing::expect_sentence([] { init(); }, {"RANK", "3"});
  ::setenv("RANK", "one", /*overwrite=*/1);
  testing::expect_sentence([] { init(); }, {"RANK", "one"});
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
}

TEST(Init, RanksFindEachOther) {
  if (testing::gpu_count() == 1) GTEST_SKIP() << "two ranks want two GPUs or none";
  testing::start_ranks(
      2,
      [](const Environment& e) {
        for (const auto& [name, value] :
             std::map<std::string, std::string>{{"RANK", str(e.rank)},
                                                {"WORLD_SIZE", str(e.world_size)},
                                                {"LOCAL_RANK", str(e.local_rank)},
                                                {"LOCAL_WORLD_SIZE", str(e.local_world_size)},
                                                {"MASTER_ADDR", e.master_address},
                                                {"MASTER_PORT", str(e.master_port)}}) {
          ::setenv(name.c_str(), value.c_str(), 1);
        }
        const Group group = init();
        EXPECT_EQ(group.world_size(), 2);
        EXPECT_EQ(group.rank(), e.rank);
        EXPECT_EQ(group.device().is_cuda(), visible_gpus() > 0);
        const at::Tensor ours = at::full({3}, 1.0 + group.rank(), group.device());
        std::vector<at::Tensor> message = {ours};
        group.wait(group.process_group().allreduce(message), "a sum");
        EXPECT_EQ(ours.sum().item<double>(), 9);
      },
      [](testing::Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
        for (const int rank : {0, 1}) EXPECT_EQ(ranks.exit_code(rank), 0) << ranks.all_output();
        EXPECT_NE(ranks.output(0).find("[flashstep] 2 ranks"), std::string::npos);
        EXPECT_EQ(ranks.output(1).find("[flashstep]"), std::string::npos);
      });
}

}  // namespace
}  // namespace flashstep
