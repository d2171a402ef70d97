#include "flashstep/base/progress.h"

#include <algorithm>
#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"

namespace flashstep {
namespace {

// What was printed into a temporary file, which is no terminal.
std::string printed(const std::function<void(std::FILE*)>& print) {
  std::FILE* file = std::tmpfile();
  print(file);
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

TEST(ProgressTest, PlainLinesWhereThereIsNoTerminal) {
  const std::string text = printed([](std::FILE* out) {
    ProgressBar bar("encode", ProgressBar::Unit::kBytes, out, /*plain_seconds=*/1000);
    for (uint64_t done = 0; done <= 2048; ++done) bar.update(done, 2048, "loss 2.5");
    bar.print("a line of its own");
    bar.finish();
  });
  // The first update and the last: nothing between them within 1000 seconds; no escape codes.
  EXPECT_EQ(text.find("encode 0 %  0 B / 2.0 KiB"), 0u) << text;
  EXPECT_NE(text.find("\na line of its own\nencode 100 %  2.0 KiB / 2.0 KiB"), std::string::npos)
      << text;
  EXPECT_NE(text.find("loss 2.5"), std::string::npos) << text;
  EXPECT_EQ(text.find('\033'), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
}

TEST(ProgressTest, APlainLineIsNotRepeatedAtTheEnd) {
  const std::string text = printed([](std::FILE* out) {
    ProgressBar bar("encode", ProgressBar::Unit::kCount, out, /*plain_seconds=*/0);
    bar.update(1, 2);
    bar.update(2, 2);
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(ProgressTest, UnknownTotalsAndNoUpdatesAreFine) {
  EXPECT_EQ(printed([](std::FILE* out) { ProgressBar("x", ProgressBar::Unit::kCount, out); }), "");
  const std::string text = printed([](std::FILE* out) {
    ProgressBar bar("count", ProgressBar::Unit::kCount, out);
    bar.callback()(12345, 0);
  });
  EXPECT_NE(text.find("count 12,345"), std::string::npos) << text;
}

TEST(SignalsTest, TheFirstSignalIsRememberedTheSecondOneEnds) {
  SignalGuard guard;
  EXPECT_EQ(SignalGuard::received(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(SignalGuard::received(), SIGTERM);
  EXPECT_EXIT(std::raise(SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace flashstep
