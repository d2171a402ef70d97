#include "flashstep/train/metrics_log.h"

#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class MetricsLogTest : public ::testing::Test {
 protected:
  MetricsLogTest()
      : path_(fs::path(::testing::TempDir()) / str("metrics_test_", ::getpid()) / "metrics.jsonl") {
    fs::create_directories(path_.parent_path());
  }
  ~MetricsLogTest() override { fs::remove_all(path_.parent_path()); }
  void put(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string text() const { return read_file(path_); }
  static std::string line(int64_t step) { return str("{\"step\":", step, ",\"loss\":1.5}"); }

  fs::path path_;
};

TEST_F(MetricsLogTest, AppendsLinesAcrossStarts) {
  { MetricsLog(path_).append(line(1)); }
  MetricsLog log(path_);
  log.append(line(2));
  log.sync();
  EXPECT_EQ(text(), line(1) + "\n" + line(2) + "\n");
  EXPECT_THROW(log.append("{\n}"), UserError);
}

TEST_F(MetricsLogTest, ATornLastLineIsCutOff) {
  const std::string whole = line(1) + "\n";
  for (size_t kept = 0; kept < line(2).size(); ++kept) {
    put(whole + line(2).substr(0, kept));
    MetricsLog log(path_);
    EXPECT_EQ(text(), whole);
  }
  put("{\"st");
  MetricsLog log(path_);
  EXPECT_EQ(text(), "");
}

TEST_F(MetricsLogTest, TruncateAfterLeavesNoStepTwice) {
  const std::string lines = line(1) + "\n" + line(2) + "\n" + line(2) + "\n" + line(4) + "\n";
  const struct {
    int64_t step, last;
    size_t lines;
  } cases[] = {{-1, -1, 0}, {0, -1, 0}, {1, 1, 1}, {2, 2, 3}, {3, 2, 3}, {4, 4, 4}, {9, 4, 4}};
  for (const auto& one : cases) {
    put(lines);
    MetricsLog log(path_);
    EXPECT_EQ(log.truncate_after(one.step), one.last);
    const std::string left = text();
    EXPECT_EQ(std::count(left.begin(), left.end(), '\n'), static_cast<int64_t>(one.lines))
        << one.step;
    log.append(line(7));  // goes to the new end
    EXPECT_EQ(text(), left + line(7) + "\n");
  }
}

TEST_F(MetricsLogTest, DamagedLinesAreNamedUnlessTheyComeAfterTheStep) {
  for (const char* bad : {"", "x", "[]", "{}", "{\"step\":\"1\"}", "{\"step\":-1}",
                          "{\"step\":1.5}", "{\"step\":18446744073709551615}"}) {
    put(line(1) + "\n" + bad + "\n" + line(2) + "\n");
    MetricsLog log(path_);
    try {
      log.truncate_after(2);
      ADD_FAILURE() << bad;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
    }
    EXPECT_EQ(log.truncate_after(1), 1);
    EXPECT_EQ(text(), line(1) + "\n");
  }
  put(line(3) + "\n" + line(2) + "\n");
  EXPECT_THROW(MetricsLog(path_).truncate_after(9), UserError);
}

TEST_F(MetricsLogTest, TheLastLineGetsMoreMembers) {
  for (const std::string end : {"\n", " \n", "\r\n"}) {
    put("{\"step\":1}\n{\"step\":2}" + end);
    MetricsLog log(path_);
    log.add_to_last("\"x\":3,\"y\":4");
    EXPECT_EQ(text(), "{\"step\":1}\n{\"step\":2,\"x\":3,\"y\":4}" + end);
    EXPECT_EQ(log.last() + "\n", "{\"step\":2,\"x\":3,\"y\":4}" + end);
    log.append(line(3));
    EXPECT_EQ(log.last(), line(3));
  }
  put("");
  EXPECT_EQ(MetricsLog(path_).last(), "");
}

TEST_F(MetricsLogTest, AFolderThatIsMissingIsTheMachinesFailure) {
  EXPECT_THROW(MetricsLog(path_.parent_path() / "missing" / "x"), MachineError);
}

TEST_F(MetricsLogTest, AFileThatIsGoneTakesNoMoreLines) {
  MetricsLog log(path_);
  log.append(line(1));
  const fs::path moved = path_.parent_path() / "moved.jsonl";
  fs::rename(path_, moved);
  EXPECT_THROW(log.append(line(2)), MachineError);
  EXPECT_THROW(log.sync(), MachineError);
  put("another");
  EXPECT_THROW(log.append(line(2)), MachineError);
  EXPECT_EQ(read_file(moved), line(1) + "\n");
}

}  // namespace
}  // namespace flashstep
