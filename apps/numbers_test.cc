// Every option of every command that takes numbers refuses those that it cannot hold, with a
// sentence that names it. All in one process: a start of the program takes most of a second.
#include <iostream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/program.h"
#include "flashstep/base/text.h"

namespace flashstep::apps {
namespace {

constexpr const char* kHuge = "99999999999999999999999";

struct Outcome {
  int code;
  std::string out, err;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Outcome run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "flashstep");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_program(static_cast<int>(arguments.size()), argv.data());
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

struct Option {
  std::string command, name, type;
};

// All that take numbers, as the help pages have them.
std::vector<Option> options() {
  std::vector<Option> found;
  const std::string script = run({"completion", "bash"}).out;
  const std::regex command_line("^    \"(.*)\"\\) words=", std::regex::multiline),
      option_line("^  (-\\S+) (INT|UINT|FLOAT)\\b", std::regex::multiline);
  const std::sregex_iterator end;
  for (std::sregex_iterator command(script.begin(), script.end(), command_line); command != end;
       ++command) {
    std::vector<std::string> arguments = words_of((*command)[1]);
    arguments.emplace_back("--help");
    const std::string page = run(arguments).out;
    for (std::sregex_iterator option(page.begin(), page.end(), option_line); option != end;
         ++option) {
      const std::string names = (*option)[1];
      found.push_back({(*command)[1], names.substr(names.rfind(',') + 1), (*option)[2]});
    }
  }
  return found;
}

TEST(NumbersTest, OutOfRangeAreRefused) {
  size_t cases = 0;
  for (const Option& option : options()) {
    // Beyond 64 bits, below what is unsigned, beyond a double, none at all.
    std::vector<std::string> values = {kHuge};
    if (option.type == "UINT") values.emplace_back("-1");
    if (option.type == "FLOAT") values = {"1e999", "nan"};
    for (const std::string& value : values) {
      std::vector<std::string> arguments = words_of(option.command);
      arguments.push_back(option.name + "=" + value);
      arguments.emplace_back("--no-such-option");  // were the number taken, nothing would run
      const Outcome outcome = run(arguments);
      const std::string what = str(option.command, " ", option.name, "=", value, ": ", outcome.err);
      EXPECT_EQ(outcome.code, 2) << what;
      EXPECT_EQ(outcome.err.find(str("flashstep: expected ", option.name, " to be ")), 0u) << what;
      EXPECT_TRUE(outcome.err.ends_with(", got " + value + "\n")) << what;
      ++cases;
    }
  }
  EXPECT_GT(cases, 120u);  // the help pages were read
}

TEST(NumbersTest, TheSentences) {
  const std::string huge = kHuge;
  const auto says = [](const std::string& arguments, const std::string& sentence) {
    const Outcome outcome = run(words_of(arguments));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.err, "flashstep: " + sentence + "\n");
  };
  says("generate run --prompt x --seed " + huge,
       "expected --seed to be a whole number from 0 on that 64 bits hold, got " + huge);
  says("tokenizer train text --vocab-size 300 --out folder --threads 4294967298",
       "expected --threads to be a whole number that 32 bits hold, got 4294967298");
  says("account attention --context [512,1024]",
       "expected --context to be a whole number, or several with commas, got [512,1024]");
  says("data inspect f --top -1",
       "expected --top to be a whole number from 0 to 4294967296, got -1");
}

}  // namespace
}  // namespace flashstep::apps
