#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

struct End {
  int code;
  std::string text;  // on stderr
};

template <typename Error>
End end_of(const Error& error) {
  testing::internal::CaptureStderr();
  const int code = run_main("program", [&]() -> int { throw error; });
  return {code, testing::internal::GetCapturedStderr()};
}

std::filesystem::filesystem_error file_error(std::errc code) {
  return {"", "some/file", std::make_error_code(code)};
}

TEST(RunMain, TellsTheCallersMistakeFromTheMachinesFailure) {
  EXPECT_EQ(run_main("program", [] { return 7; }), 7);
  const End mistake = end_of(UserError("[train] expected more"));
  EXPECT_EQ(mistake.code, 2);
  EXPECT_EQ(mistake.text, "program: [train] expected more\n");
  EXPECT_EQ(end_of(MachineError("the disk is full")).code, 1);
  EXPECT_EQ(end_of(std::runtime_error("what nobody knows")).code, 1);
  EXPECT_EQ(end_of(file_error(std::errc::filename_too_long)).code, 2);
  EXPECT_EQ(end_of(file_error(std::errc::no_space_on_device)).code, 1);
  EXPECT_EQ(end_of(Interrupted(15, "stopped")).code, 143);
  EXPECT_EQ(end_of(7).code, 1) << "no std::exception";
}

// As LibTorch words them: a backtrace stands below.
TEST(RunMain, ErrorsOfLibTorchAreOneLine) {
  const End end =
      end_of(std::runtime_error("sizes differ\nException raised from f at g.cpp:1\nframe #0: h"));
  EXPECT_EQ(end.code, 1);
  EXPECT_EQ(end.text, "program: LibTorch failed: sizes differ\n");
  const End memory =
      end_of(std::runtime_error("CUDA out of memory. Tried 4 GiB\nException raised"));
  EXPECT_EQ(memory.text.find("program: out of memory (a smaller model or batch"), 0u);
  EXPECT_EQ(end_of(std::bad_alloc()).text, "program: out of memory\n");
}

TEST(RunMain, ASentenceHasALength) {
  const End end = end_of(UserError("begin " + std::string(1 << 20, 'x') + " end"));
  EXPECT_LT(end.text.size(), 2000u);
  EXPECT_EQ(end.text.find("program: begin x"), 0u);
  EXPECT_TRUE(end.text.ends_with("x end\n"));
}

}  // namespace
}  // namespace flashstep
