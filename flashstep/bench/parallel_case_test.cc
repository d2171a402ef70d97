#include "flashstep/bench/parallel_case.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

TEST(ParallelCase, EveryCombinationModelsFirst) {
  ParallelAxes axes;
  axes.sizes = {"small", "large"};
  axes.contexts = {0, 64};
  axes.precisions = {"bf16"};
  axes.ranks = {2, 4};
  const auto cases = cases_of(axes);
  ASSERT_EQ(cases.size(), 8u);
  EXPECT_EQ(describe(cases[0]), "small, 2 ranks, batch 4, context 512, bf16");
  EXPECT_EQ(file_stem(cases[0]), "small_2x4x512_bf16");
  EXPECT_EQ(describe(cases[3]), "small, 4 ranks, batch 4, context 64, bf16");
  EXPECT_EQ(model_name(cases[7].model), "large");
  EXPECT_EQ(cases[7].backend(), "gloo");
  ParallelCase on_gpus, back;
  on_gpus.device = "cuda";
  on_gpus.ranks = 3;
  read_json(back, write_json(on_gpus), "test");
  EXPECT_EQ(back.backend(), "nccl");
  EXPECT_EQ(back.ranks, 3);
}

TEST(ParallelCase, AChosenSizeIsShown) {
  EXPECT_EQ(shown_name("bucketed 0", 126.49), "bucketed 126 MB (chosen)");
  EXPECT_EQ(shown_name("torch 0", 25), "torch 25 MB (chosen)");
  EXPECT_EQ(shown_name("bucketed 0", NAN), "bucketed 0") << "not known";
  for (const char* name : {"none", "naive", "bucketed 100"}) EXPECT_EQ(shown_name(name, 126), name);
}

TEST(ParallelCase, DivisionsByName) {
  const auto names = division_names({"none", "naive", "bucketed", "torch"}, {0.5, 25});
  EXPECT_EQ(names, (std::vector<std::string>{"none", "naive", "bucketed 0.5", "bucketed 25",
                                             "torch 0.5", "torch 25"}));
  EXPECT_EQ(division_by_name("bucketed 0.5").bucket_megabytes, 0.5);
  EXPECT_EQ(division_by_name("naive").wrapper, "naive");
  EXPECT_EQ(division_names({"bucketed"}, {0}), std::vector<std::string>{"bucketed 0"});
  EXPECT_EQ(division_by_name("bucketed 0").bucket_megabytes, 0) << "chosen";
  for (const char* wrong : {"", "bucketed", "bucketed x", "bucketed -1", "fsdp"})
    EXPECT_THROW(division_by_name(wrong), UserError) << wrong;
}

TEST(ParallelCase, BucketsCanGoByNccl) {
  EXPECT_EQ(division_by_name("bucketed 25").peer_copies, "all") << "as flashstep train does";
  EXPECT_EQ(division_by_name("bucketed 25 nccl").peer_copies, "none");
  EXPECT_EQ(division_by_name("bucketed 25 nccl").bucket_megabytes, 25);
  EXPECT_EQ(division_names({"none", "bucketed", "bucketed nccl"}, {0, 25}),
            (std::vector<std::string>{"none", "bucketed 0", "bucketed 25", "bucketed 0 nccl",
                                      "bucketed 25 nccl"}));
  EXPECT_EQ(shown_name("bucketed 0 nccl", 269.8), "bucketed 270 MB (chosen) nccl");
  EXPECT_NO_THROW(check_transports({"none", "bucketed 25", "flat"}, "cpu"));
  EXPECT_NO_THROW(check_transports({"bucketed 25 nccl", "flat nccl"}, "cuda"));
  EXPECT_THROW(check_transports({"none", "bucketed 25 nccl"}, "cpu"), UserError);
  EXPECT_THROW(check_transports({"flat nccl"}, "cpu"), UserError);
  for (const char* name : {"torch 25 nccl", "bucketed 25 copies", "naive nccl"})
    EXPECT_THROW(division_by_name(name), UserError) << name;
}

}  // namespace
}  // namespace flashstep::tools
