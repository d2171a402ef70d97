#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/memory.h"
#include "flashstep/trace/test_gpu_like_trace.h"
#include "flashstep/trace/trace_events.h"

namespace flashstep::tools {
namespace {

const TraceEvent& find(const TraceEvents& trace, const std::string& name) {
  const auto at = std::ranges::find(trace.events, name,
                                    [&](const TraceEvent& e) { return trace.names[e.name]; });
  if (at == trace.events.end()) throw std::runtime_error("no event " + name);
  return *at;
}

std::string mistake(const std::string& json) {
  try {
    parse_chrome_trace(json, "x.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ChromeTrace, ReadsWhatKinetoWrites) {
  const TraceEvents trace = parse_chrome_trace(gpu_like_trace(), "x.json");
  EXPECT_EQ(trace.events.size(), 31u) << "metadata and flows are none";
  const TraceEvent& forward = find(trace, "forward");
  EXPECT_EQ(forward.kind, EventKind::kRange);
  EXPECT_EQ(forward.begin_ns, 1'000'010'000);
  EXPECT_EQ(forward.end_ns, 1'000'040'000);
  EXPECT_EQ(forward.lane, 100u);
  EXPECT_EQ(forward.sequence, 5);
  const TraceEvent& kernel = find(trace, "void softmax_warp_forward<float>(float*)");
  EXPECT_EQ(kernel.kind, EventKind::kKernel);
  EXPECT_EQ(kernel.id, 12u);
  EXPECT_EQ(kernel.correlation, 13u);
  EXPECT_EQ(find(trace, "Memcpy DtoD (Device -> Device)").kind, EventKind::kCopy);
  EXPECT_EQ(find(trace, "cudaLaunchKernel").kind, EventKind::kLaunch);
  EXPECT_EQ(find(trace, "aten::mm").flops, 2 * 4 * 8 * 16);
  EXPECT_EQ(find(trace, "aten::matmul").flops, 0);
  EXPECT_EQ(find(trace, "aten::_softmax").bytes, 2 * 4 * 64);
  EXPECT_EQ(find(trace, "autograd::engine::evaluate_function: MmBackward0").forward_thread, 100u)
      << "by the system's number of the thread";
}

TEST(ChromeTrace, ReadsTheShortFormAndOddTexts) {
  const TraceEvents trace = parse_chrome_trace(
      R"([ {"args":{"a":[1,{"b":"]}"}],"Input Dims":[[[2,3],[4]],[]],"Input type":["TensorList",""]},
            "name":"aten::cat","cat":"cpu_op","ph":"X","tid":-1,"ts":-2.5,"dur":1e1,"x":null},
           {"name":"a \"\\ \u0041\n","cat":"user_annotation","ph":"X","tid":"main","ts":3} ])",
      "x.json");
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].begin_ns, -2500);
  EXPECT_EQ(trace.events[0].end_ns, 7500);
  EXPECT_EQ(trace.events[0].bytes, 2 * 4 * (6 + 4)) << "a list of tensors";
  EXPECT_EQ(trace.names[trace.events[1].name], "a \"\\ A\n");
  EXPECT_EQ(trace.events[1].end_ns, trace.events[1].begin_ns);
}

TEST(ChromeTrace, SaysWhereAFileIsDamaged) {
  EXPECT_EQ(mistake("{}"), "[trace] expected operators, ranges or kernels in x.json, got none");
  EXPECT_EQ(mistake(""), "[trace] expected '{' at byte 0 of x.json, got its end");
  EXPECT_NE(mistake("[1, 2]"), "");
  EXPECT_NE(mistake("\x89PNG\r\n"), "");
  const std::string whole = gpu_like_trace();
  // Cut anywhere it is refused, and nothing worse happens.
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(mistake(whole.substr(0, length)), "") << length;
}

TEST(ChromeTrace, NumbersThatNoTraceHas) {
  const auto event = [](const std::string& rest) {
    return "[{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::mm\", " + rest + "}]";
  };
  for (const char* far :
       {"\"ts\": -9223372036854775.808", "\"ts\": 1e300", "\"ts\": 1, \"dur\": 9223372036854775"}) {
    EXPECT_NE(mistake(event(far)).find("146 years"), std::string::npos) << far;
  }
  for (const char* shape : {"[4, -7], [-7, 4]", "[9007199254740993, 2], [2, 2]"}) {
    const TraceEvents trace =
        parse_chrome_trace(event(str("\"args\": {\"Input Dims\": [", shape,
                                     "], \"Input type\": [\"float\", \"float\"]}")),
                           "x.json");
    EXPECT_EQ(trace.events.at(0).flops, 0) << shape;
  }
}

TEST(ChromeTrace, NeedsLittleMemoryBesideTheEvents) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "large_trace.json";
  constexpr int kEvents = 60'000;
  {
    AtomicFile file(path);
    file.write("{\"traceEvents\": [");
    const std::string padding(2000, 'x');
    for (int i = 0; i < kEvents; ++i) {
      file.write(
          str(i == 0 ? "" : ",", R"({"ph":"X","cat":"cpu_op","name":"aten::mm","tid":1,"ts":)", i,
              R"(,"dur":1,"args":{"External id":)", i + 1, R"(,"padding":")", padding, "\"}}\n"));
    }
    file.write("]}");
    file.commit();
  }
  const double size = static_cast<double>(std::filesystem::file_size(path));
  measure::reset_peak_resident();
  const auto before = static_cast<double>(measure::resident_bytes());
  uint64_t told = 0;
  const TraceEvents trace = read_chrome_trace(path, [&](uint64_t done, uint64_t) { told = done; });
  EXPECT_EQ(trace.events.size(), static_cast<size_t>(kEvents));
  EXPECT_GT(told, 0u);
  // Between two releases 64 MiB of the file may be resident; the file has 125 MB.
  EXPECT_LT(static_cast<double>(measure::peak_resident_bytes()) - before, 0.75 * size);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace flashstep::tools
