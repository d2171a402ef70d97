#include "flashstep/measure/machine.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/data_sheet.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/step_rates.h"
#include "flashstep/measure/test_busy_children.h"

namespace flashstep::measure {
namespace {

TEST(Machine, ReadsCpuinfo) {
  const std::string text =
      "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fma avx2\n"
      "\nprocessor\t: 1\nmodel name\t: Other\nempty\t:\n";
  EXPECT_EQ(internal::cpuinfo_field(text, "model name"), "Some CPU @ 3 GHz");
  EXPECT_EQ(internal::cpuinfo_field(text, "flags"), "fma avx2");
  EXPECT_EQ(internal::cpuinfo_field(text, "empty"), "");
  EXPECT_EQ(internal::cpuinfo_field(text, "missing"), "");
  EXPECT_EQ(internal::cpuinfo_field("", "flags"), "");
}

TEST(Machine, DescribesThisOne) {
  const Machine machine = describe_machine();
  EXPECT_FALSE(machine.processor.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_GE(machine.threads, 1);
  EXPECT_GT(machine.memory_bytes, uint64_t{1} << 26);
  EXPECT_TRUE(machine.libtorch_version.starts_with("2.11")) << machine.libtorch_version;
}

TEST(Machine, TheMemoryOfAGpuIsNotTheMachines) {
  Machine machine;
  machine.processor = "A processor";
  machine.cores = 2;
  machine.memory_bytes = uint64_t{24} << 30;
  EXPECT_EQ(one_line(machine), "A processor, 2 cores, 24.0 GiB");
  machine.gpus = {{"A GPU", uint64_t{80} << 30, 9, 0, 132}};
  EXPECT_EQ(one_line(machine), "1 x A GPU with 80.0 GiB; A processor, 2 cores, 24.0 GiB");
}

TEST(DataSheet, SpecialModelsBeforeGeneralOnes) {
  EXPECT_EQ(find_data_sheet("NVIDIA H200")->bf16, 989.5e12);
  EXPECT_EQ(find_data_sheet("NVIDIA H200 NVL")->bf16, 835.5e12);
  EXPECT_EQ(find_link_sheet("NVIDIA H200")->bytes_per_s, 450e9);
  EXPECT_EQ(find_link_sheet("NVIDIA H100 PCIe")->bytes_per_s, 300e9);
  EXPECT_FALSE(find_link_sheet("NVIDIA GeForce RTX 4090"));
  EXPECT_DOUBLE_EQ(find_data_sheet("NVIDIA H100 80GB HBM3")->memory_bytes_per_s, 3.35e12);
  EXPECT_DOUBLE_EQ(find_data_sheet("NVIDIA H100 PCIe")->memory_bytes_per_s, 2.0e12);
  EXPECT_DOUBLE_EQ(find_data_sheet("NVIDIA A100-SXM4-80GB")->memory_bytes_per_s, 2.039e12);
  EXPECT_DOUBLE_EQ(find_data_sheet("NVIDIA A100-SXM4-40GB")->memory_bytes_per_s, 1.555e12);
  EXPECT_FALSE(find_data_sheet("NVIDIA GeForce GTX 1080"));
  EXPECT_FALSE(find_data_sheet("H2000"));
  EXPECT_TRUE(find_data_sheet("NVIDIA GB200"));
}

// An H200's are measured; an H100 has the same products and 3.35 of its 4.8 TB/s.
TEST(StepRates, OfOtherGpusAreByTheDataSheets) {
  const StepRates h200 = step_rates("NVIDIA H200").value(), h100 = step_rates("H100").value();
  EXPECT_TRUE(h200.is_measured);
  EXPECT_FALSE(h100.is_measured);
  EXPECT_DOUBLE_EQ(h100.products, h200.products);
  EXPECT_DOUBLE_EQ(h100.memory, h200.memory * 3.35 / 4.8);
  EXPECT_DOUBLE_EQ(step_rates("B200")->link, 2 * h200.link);
  EXPECT_FALSE(step_rates("NVIDIA GeForce GTX 1080"));
  EXPECT_NEAR(gpu_memory_bytes("H200").value() / 1073741824, 139.80, 1e-9);
  EXPECT_FALSE(gpu_memory_bytes("K80"));
  // Half of the rate at the length that is named for it; head dims between 64 and 128 on a line.
  const AttentionRates rates{100, 80, 200, 160, 1000};
  EXPECT_DOUBLE_EQ(rates.forward(64, 1000), 50);
  EXPECT_DOUBLE_EQ(rates.backward(96, 1000), 60);
  EXPECT_DOUBLE_EQ(rates.forward(256, 3000), 150);
}

// A cache folder of its own for each test.
class LimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / "flashstep_limits_test";
    std::filesystem::remove_all(folder_);
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
    machine_ = describe_machine();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  Machine machine_;
};

TEST_F(LimitsTest, MeasuredOnceThenRead) {
  // Damage costs a new measurement, not an error.
  make_directories(limits_cache_file(machine_).parent_path());
  write_file(limits_cache_file(machine_), "{");
  Limits first = machine_limits(machine_, "cpu");
  ASSERT_EQ(first.limits.size(), 4U);
  for (const Limit& limit : first.limits) {
    EXPECT_GT(limit.rate, 1e7) << limit.name;
    EXPECT_LE(limit.median_rate, limit.rate) << limit.name;
  }
  // A quiet machine keeps what it measured, a busy one does not.
  const bool kept = read_file(limits_cache_file(machine_)).size() > 2;
  EXPECT_EQ(kept, !first.busy);

  first.limits[0].rate = 12345678.5;  // what is read now can only come from the file
  first.limits[1].rate = 1e7;         // bf16
  first.limits[2].rate = 23456789.5;  // fp16
  write_limits_cache(machine_, "cpu", first);
  EXPECT_EQ(machine_limits(machine_, "cpu").limits[0].rate, 12345678.5);
  EXPECT_EQ(matmul_limit_flops("cpu", "fp32"), 12345678.5);
  EXPECT_EQ(matmul_limit_flops("cpu", "bf16"), 12345678.5) << "may be multiplied in fp32";
  EXPECT_EQ(matmul_limit_flops("cpu", "fp16"), 23456789.5);
  EXPECT_GT(memory_limit_bytes_per_s("cpu"), 1e7);
  EXPECT_THROW(matmul_limit_flops("cpu", "fp64"), UserError);
  EXPECT_THROW(machine_limits(machine_, "gpu"), UserError);

  Machine other = machine_;
  other.threads += 1;
  EXPECT_NE(limits_cache_file(other), limits_cache_file(machine_));

  first.limits[0].rate = -1;
  write_limits_cache(machine_, "cpu", first);
  EXPECT_GT(machine_limits(machine_, "cpu").limits[0].rate, 1e7);
}

TEST_F(LimitsTest, LinksBetweenRanksAreKeptToo) {
  Limits links = machine_limits(machine_, "link");
  ASSERT_FALSE(links.limits.empty());
  Limit& loopback = links.limits[0];
  EXPECT_EQ(loopback.name, "loopback");
  EXPECT_GT(loopback.rate, 1e7);
  EXPECT_LT(loopback.rate, 1e12);
  EXPECT_LE(loopback.median_rate, loopback.rate);
  EXPECT_FALSE(data_sheet_rate(machine_, loopback));
  loopback.rate = 12345678.5;
  write_limits_cache(machine_, "link", links);
  EXPECT_EQ(machine_limits(machine_, "link").limits[0].rate, 12345678.5);

  Machine other = machine_;
  other.gpus = {{.name = "NVIDIA H200"}};
  EXPECT_EQ(data_sheet_rate(other, {.device = "link", .name = "GPU to GPU", .method = ""}), 450e9);
}

// Quiet when we look, busy half a second later.
TEST_F(LimitsTest, BesideProgramsThatBeginLaterNothingIsKept) {
  const BusyChildren others(machine_.cores, std::chrono::milliseconds(400));
  EXPECT_TRUE(machine_limits(machine_, "cpu").busy);
  EXPECT_FALSE(std::filesystem::exists(limits_cache_file(machine_)));
}

TEST_F(LimitsTest, NoPlaceForACache) {
  write_file("/tmp/flashstep_limits_file", "not a folder");
  setenv("XDG_CACHE_HOME", "/tmp/flashstep_limits_file", 1);
  const Limits limits = machine_limits(machine_, "cpu");
  EXPECT_EQ(limits.limits.size(), 4U);
  EXPECT_EQ(limits.not_kept.empty(), limits.busy);
  EXPECT_NE(write_limits_cache(machine_, "cpu", limits), "");
  std::filesystem::remove("/tmp/flashstep_limits_file");
}

}  // namespace
}  // namespace flashstep::measure
