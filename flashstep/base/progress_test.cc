#include "flashstep/base/progress.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <pty.h>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/terminal.h"

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

// What a terminal of `columns` columns shows of a training run, before `finish` ends the line.
std::string on_terminal(unsigned short columns, const std::string& label, const std::string& note) {
  int controller = -1, terminal = -1;
  winsize size{};
  size.ws_col = columns;
  EXPECT_EQ(::openpty(&controller, &terminal, nullptr, nullptr, &size), 0) << std::strerror(errno);
  std::FILE* out = ::fdopen(terminal, "w");
  {
    ProgressBar bar(label, ProgressBar::Unit::kCount, out);
    bar.update(1200, 3000, note);
  }
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(::read(controller, text.data(), text.size())));
  std::fclose(out);
  ::close(controller);
  const std::string clear = "\r\033[K";
  const size_t begin = text.rfind(clear);
  return begin == std::string::npos
             ? text
             : text.substr(begin + clear.size(),
                           text.find_last_not_of("\r\n") + 1 - begin - clear.size());
}

TEST(ProgressTest, TheBarShrinksFirstAndLossAndSpeedStay) {
  ::setenv("TERM", "xterm", 1);
  const std::string note =
      "loss 2.315, 1,234,567 tokens/s, held-out 2.412, 41 % of the machine's limit";
  const auto shown = [&](unsigned short columns) {
    const std::string line = on_terminal(columns, "training", note);
    EXPECT_LT(cells(line), columns) << line;
    return line;
  };
  const auto has = [](const std::string& line, const char* part) {
    return line.find(part) != std::string::npos;
  };
  for (const unsigned short columns : {200, 160, 140, 120, 100, 80, 62}) {
    EXPECT_TRUE(has(shown(columns), "loss 2.315, 1,234,567 tokens/s, held-out 2.412")) << columns;
  }
  EXPECT_TRUE(has(shown(200), "limit")) << shown(200);
  EXPECT_TRUE(has(shown(200), "1,200 / 3,000")) << shown(200);
  EXPECT_TRUE(has(shown(200), "│█████████···············│ 40 %")) << shown(200);
  EXPECT_FALSE(has(shown(80), "limit")) << shown(80);
  EXPECT_TRUE(has(shown(80), "training")) << shown(80);
  EXPECT_EQ(shown(40), "40 %  loss 2.315, 1,234,567 tokens/s");
  EXPECT_EQ(shown(32), "loss 2.315, 1,234,567 tokens/s");
  EXPECT_EQ(shown(30), "│██████·········│  loss 2.315");
  EXPECT_EQ(shown(16), "loss 2.315");
  EXPECT_EQ(shown(8), "loss 2.");
}

TEST(ProgressTest, WithoutANoteTheLabelStays) {
  ::setenv("TERM", "xterm", 1);
  EXPECT_EQ(on_terminal(19, "encode", ""), "encode │█···│ 40 %");
  EXPECT_EQ(on_terminal(50, "encode", "").substr(0, 13), "encode │█");
}

TEST(ProgressTest, ADumbTerminalGetsPlainLines) {
  ::setenv("TERM", "dumb", 1);
  const std::string text = on_terminal(80, "training", "loss 2.315");
  ::setenv("TERM", "xterm", 1);
  EXPECT_EQ(text.find('\033'), std::string::npos) << text;
  EXPECT_EQ(text.find("training 40 %  1,200 / 3,000"), 0u) << text;
}

TEST(TerminalTest, WideLinesAreBrokenBelowTheirLastColumn) {
  EXPECT_EQ(wrapped("--run DIR      Run directory, or the next free of them\nshort\n", 40),
            "--run DIR      Run directory, or the\n               next free of them\nshort\n");
  EXPECT_EQ(wrapped("  a = b + c + d + e + f + g + h + i", 30),
            "  a = b + c + d + e + f + g +\n    h + i");
  // A word wider than the terminal stands on a line of its own, whole.
  const std::string path(50, 'x');
  EXPECT_EQ(wrapped("see " + path + " there and then", 30),
            "see\n  " + path + "\n  there and then");
  EXPECT_EQ(wrapped("as it is, " + path, 0), "as it is, " + path);
  EXPECT_EQ(wrapped(std::string(60, ' '), 30), std::string(60, ' '));
  EXPECT_EQ(wrapped("größer größer größer größer g", 29), "größer größer größer größer g");
}

}  // namespace
}  // namespace flashstep
