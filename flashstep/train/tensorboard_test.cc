#include "flashstep/train/tensorboard.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class TensorboardTest : public ::testing::Test {
 protected:
  TensorboardTest()
      : directory_(fs::path(::testing::TempDir()) / str("tensorboard_test_", ::getpid())) {}
  ~TensorboardTest() override { fs::remove_all(directory_); }
  fs::path directory_;
};

// The lengths of the records in an event file; fails the test unless they fill it.
std::vector<uint64_t> record_sizes(const std::string& bytes) {
  std::vector<uint64_t> sizes;
  size_t offset = 0;
  while (offset + 12 <= bytes.size()) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data() + offset, sizeof size);
    sizes.push_back(size);
    offset += 12 + size + 4;
  }
  EXPECT_EQ(offset, bytes.size());
  return sizes;
}

TEST_F(TensorboardTest, StartsWithVersionAndSessionAndGrowsByWholeRecords) {
  EventWriter writer(directory_, 0);
  EXPECT_EQ(record_sizes(read_file(writer.path())).size(), 2u);
  writer.scalars(1, {{"loss", 2.5}, {"lr", 1e-3}});
  EXPECT_EQ(record_sizes(read_file(writer.path())).size(), 3u);
  writer.text(1, "sample", std::string(300, 'x'));
  EXPECT_EQ(record_sizes(read_file(writer.path())).size(), 4u);
  const std::string bytes = read_file(writer.path());
  EXPECT_NE(bytes.find("brain.Event:2"), std::string::npos);
  // Wall time, step and version, each with its tag. Readers of other people check the rest
  // (tensorboard_test.py).
  EXPECT_EQ(record_sizes(bytes)[0], 9u + 2u + 15u);
}

TEST_F(TensorboardTest, LaterFilesSortAfterEarlierOnes) {
  std::vector<std::string> names;
  for (int start = 0; start < 5; ++start) {
    names.push_back(EventWriter(directory_, start).path().filename().string());
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 5u);
}

TEST_F(TensorboardTest, AFolderThatCannotBeMadeIsTheMachinesFailure) {
  write_file(directory_.string() + "_file", "x");
  EXPECT_THROW(EventWriter(directory_.string() + "_file", 0), MachineError);
  fs::remove(directory_.string() + "_file");
}

}  // namespace
}  // namespace flashstep
