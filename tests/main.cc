// main() of the test programs. The tests of a room are one program, which ctest runs file by file:
//   ROOM_tests [--file=x_test.cc] [googletest's arguments]    all tests, or those in x_test.cc
//   ROOM_tests --files                                        the names of these files
// Exit code 0: all passed, 1: some failed, 77: all were skipped.
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"

namespace {

// Whether `path` is, or ends with, this name of a file.
bool is_file(std::string_view path, std::string_view name) {
  if (!path.ends_with(name)) return false;
  path.remove_suffix(name.size());
  return path.empty() || path.ends_with('/');
}

// googletest's filter that selects the tests of a file; empty when it has none.
std::string tests_of(std::string_view file) {
  const auto* all = testing::UnitTest::GetInstance();
  std::string filter;
  for (int s = 0; s < all->total_test_suite_count(); ++s) {
    const testing::TestSuite* suite = all->GetTestSuite(s);
    for (int t = 0; t < suite->total_test_count(); ++t) {
      const testing::TestInfo* test = suite->GetTestInfo(t);
      if (!is_file(test->file(), file)) continue;
      if (!filter.empty()) filter.push_back(':');
      filter.append(suite->name()).append(".").append(test->name());
    }
  }
  return filter;
}

std::set<std::string> test_files() {
  std::set<std::string> files;
  const auto* all = testing::UnitTest::GetInstance();
  for (int s = 0; s < all->total_test_suite_count(); ++s) {
    const testing::TestSuite* suite = all->GetTestSuite(s);
    for (int t = 0; t < suite->total_test_count(); ++t)
      files.insert(std::filesystem::path(suite->GetTestInfo(t)->file()).filename());
  }
  return files;
}

// A test that stands elsewhere (one made by a header's macro), which ctest would never run; empty:
// none does.
std::string test_outside_of_test_files() {
  const auto* all = testing::UnitTest::GetInstance();
  for (int s = 0; s < all->total_test_suite_count(); ++s) {
    const testing::TestSuite* suite = all->GetTestSuite(s);
    for (int t = 0; t < suite->total_test_count(); ++t) {
      const testing::TestInfo* test = suite->GetTestInfo(t);
      if (!std::string_view(test->file()).ends_with("_test.cc"))
        return std::string(suite->name()) + "." + test->name() + " in " + test->file();
    }
  }
  return "";
}

constexpr int kAllSkipped = 77;  // as Automake has it

// A signal that a test received would end the tests that follow: a new guard forgets it.
class ForgetsSignals : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override { const flashstep::SignalGuard guard; }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const std::string outside = test_outside_of_test_files(); !outside.empty()) {
    std::fprintf(stderr, "expected tests in files x_test.cc only, got %s\n", outside.c_str());
    return 1;
  }
  const std::string_view argument = argc > 1 ? argv[1] : "";
  if (argument == "--files") {
    for (const std::string& file : test_files()) std::printf("%s\n", file.c_str());
    return 0;
  }
  if (argc > 2 || (argc == 2 && !argument.starts_with("--file="))) {
    std::fprintf(stderr, "expected --file=x_test.cc and arguments of googletest, got %s\n",
                 argv[argc - 1]);
    return 1;
  }
  if (argc == 2) {
    const std::string filter = tests_of(argument.substr(7));
    if (filter.empty()) {
      std::fprintf(stderr, "expected --file=x_test.cc of a file with tests, got %s\n", argv[1]);
      return 1;
    }
    // A filter that the caller gives goes before.
    if (GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, filter);
  }
  testing::UnitTest::GetInstance()->listeners().Append(new ForgetsSignals);  // owned by them
  const int code = RUN_ALL_TESTS();
  const auto* all = testing::UnitTest::GetInstance();
  const bool none_ran = all->skipped_test_count() > 0 && all->successful_test_count() == 0;
  return code == 0 && none_ran ? kAllSkipped : code;
}
