// `flashstep data stories` as a user calls it.
#include <cstdlib>
#include <filesystem>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "flashstep/data/stories.h"
#include "flashstep/detail/files.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

struct Result {
  int exit_code;
  std::string errors;
};

Result run(const std::string& arguments) {
  const char* program = std::getenv("FLASHSTEP_PROGRAM");
  if (program == nullptr) return {-1, "FLASHSTEP_PROGRAM is not set"};
  const fs::path errors = fs::path(::testing::TempDir()) / "stories_command_errors.txt";
  const std::string command =
      std::string(program) + " data stories " + arguments + " > /dev/null 2> " + errors.string();
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(errors)};
}

class StoriesCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("FLASHSTEP_PROGRAM") == nullptr) GTEST_SKIP() << "FLASHSTEP_PROGRAM is not set";
    fs::remove(out_);
  }
  const fs::path out_ = fs::path(::testing::TempDir()) / "stories_command.txt";
};

TEST_F(StoriesCommand, WritesTheCorpus) {
  const Result result = run("--megabytes 1 --seed 5 --out " + out_.string());
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const std::string text = read_file(out_);
  EXPECT_GE(text.size(), 1'000'000u);
  EXPECT_LT(text.size(), 1'010'000u);
  EXPECT_TRUE(text.starts_with(story(5, 0)));
}

TEST_F(StoriesCommand, RefusesBadArguments) {
  const std::string out = " --out " + out_.string();
  for (const std::string& arguments :
       {"--megabytes 0 --seed 1" + out, "--megabytes -3 --seed 1" + out,
        "--megabytes many --seed 1" + out, "--seed 1" + out, "--megabytes 1" + out,
        "--megabytes 1 --seed -1" + out, std::string("--megabytes 1 --seed 1"),
        "--megabytes 1 --seed 1 --sedd 2" + out}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_FALSE(result.errors.empty());
    EXPECT_LT(result.errors.size(), 200u) << result.errors;  // no bound of 309 digits
    EXPECT_FALSE(fs::exists(out_)) << arguments;
  }
}

TEST_F(StoriesCommand, SaysWhereItCannotWrite) {
  const Result result = run("--megabytes 1 --seed 1 --out /nonexistent/folder/stories.txt");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("/nonexistent/folder"), std::string::npos) << result.errors;
}

}  // namespace
}  // namespace flashstep
