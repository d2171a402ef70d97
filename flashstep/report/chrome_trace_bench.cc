// A chrome trace of some size, as Kineto writes it of training steps on a GPU, made up without
// chance; read, and made into the tables of `flashstep profile --trace`: seconds and memory.
//   report_chrome_trace_bench [megabytes, 1000] [folder for the file, the system's temporary one]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <unistd.h>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/report/profile.h"
#include "flashstep/report/profile_sums.h"
#include "flashstep/report/trace_events.h"

namespace flashstep::report {
namespace {

constexpr int kMain = 9313, kAutograd = 9401;  // threads
constexpr int kBlocks = 24;
constexpr double kMegabyte = 1e6;

// An operator of LibTorch, the operators that call it, and the kernel it launches.
struct Operator {
  const char* outer;
  const char* name;
  const char* node;  // of the backward pass
  const char* types;
  const char* shapes;
  const char* kernel;
};
constexpr Operator kOperators[] = {
    {"aten::linear", "aten::mm", "MmBackward0", R"("float", "float")", "[2048, 1600], [1600, 1600]",
     "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4"},
    {"aten::softmax", "aten::_softmax", "SoftmaxBackward0", R"("float", "Scalar", "Scalar")",
     "[4, 25, 512, 512], [], []",
     "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, "
     "false>(float*, float const*, int, int, int, bool const*, int, bool)"},
    {"aten::square", "aten::pow", "PowBackward0", R"("float", "Scalar")", "[4, 512, 1600], []",
     "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
     "pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)"
     "#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"},
};
constexpr const char* kRanges[] = {"norm", "self-attention", "feed-forward"};

// Steps after each other, until the file is large enough.
class TraceWriter {
 public:
  explicit TraceWriter(const std::filesystem::path& path) : file_(path) {}

  uint64_t write(double bytes) {
    file_.write("{\n  \"schemaVersion\": 1,\n  \"traceEvents\": [");
    while (static_cast<double>(file_.size_bytes()) < bytes) step();
    file_.write("\n  ],\n  \"traceName\": \"bench\"\n}\n");
    file_.commit();
    return events_;
  }

 private:
  void step() {
    // What encloses is written last: only then is it known how long it took.
    const int64_t begin = now_ns_;
    const int64_t first_node = sequence_;
    range("forward", [&] {
      for (int block = 0; block < kBlocks; ++block) {
        range(str("layers.", block), [&] {
          for (const char* name : kRanges) {
            range(name, [&] {
              for (const Operator& op : kOperators) forward(op);
            });
          }
        });
      }
    });
    range("backward", [&] {
      for (int64_t node = sequence_ - 1; node >= first_node; --node) {
        backward(kOperators[static_cast<size_t>(node - first_node) % std::size(kOperators)], node);
      }
    });
    range("optimizer", [&] { kernel(kMain, kOperators[2].kernel, ++id_); });
    annotate("step", begin);
  }

  template <typename Work>
  void range(const std::string& name, const Work& work) {
    const int64_t begin = advance();
    work();
    annotate(name, begin);
  }
  void annotate(const std::string& name, int64_t begin) {
    event("user_annotation", name, kMain, begin, advance() - begin,
          str("\"External id\": ", ++id_, ",\"Record function id\": 0, \"Sequence number\": ",
              sequence_, ", \"Fwd thread id\": 0, \"Ev Idx\": ", events_));
  }

  void forward(const Operator& op) {
    const int64_t begin = advance();
    inner(op, kMain, str("\"Sequence number\": ", sequence_, ", \"Fwd thread id\": 0, "));
    flow("fwdbwd", 's', sequence_, kMain, begin);
    operation(op.outer, op, kMain, begin, ++id_, "");
    ++sequence_;
  }
  void backward(const Operator& op, int64_t node) {
    const int64_t begin = advance();
    flow("fwdbwd", 'f', node, kAutograd, begin);
    inner(op, kAutograd, "");
    event("cpu_op", str("autograd::engine::evaluate_function: ", op.node), kAutograd, begin,
          advance() - begin,
          str("\"External id\": ", ++id_, ",\"Sequence number\": ", node,
              ", \"Fwd thread id\": 1, \"Record function id\": 0, \"Ev Idx\": ", events_));
  }
  // The operator itself, and its kernel.
  void inner(const Operator& op, int thread, const std::string& numbers) {
    const int64_t begin = advance();
    const int64_t id = ++id_;
    kernel(thread, op.kernel, id);
    operation(op.name, op, thread, begin, id, numbers);
  }
  void operation(const char* name, const Operator& op, int thread, int64_t begin, int64_t id,
                 const std::string& numbers) {
    event("cpu_op", name, thread, begin, advance() - begin,
          str("\"External id\": ", id, ",", numbers,
              "\"Record function id\": 0, \"Concrete Inputs\": [\"\", \"\", \"1\"], "
              "\"Input type\": [",
              op.types, "], \"Input Strides\": [", op.shapes, "], \"Input Dims\": [", op.shapes,
              "], \"Ev Idx\": ", events_));
  }
  void kernel(int thread, const char* name, int64_t id) {
    const int64_t begin = advance();
    const int64_t number = ++correlation_;
    event("cuda_runtime", "cudaLaunchKernel", thread, begin, advance() - begin,
          str("\"External id\": ", id, ", \"cbid\": 211, \"correlation\": ", number));
    flow("ac2g", 's', number, thread, begin);
    device_ns_ = std::max(device_ns_, now_ns_) + 500;
    const int64_t started = device_ns_;
    device_ns_ += 4000 + number * 7919 % 9000;
    event("kernel", name, 7, started, device_ns_ - started,
          str("\"External id\": ", id,
              ", \"queued\": 0, \"device\": 0, \"context\": 1,\n      "
              "\"stream\": 7, \"correlation\": ",
              number,
              ",\n      \"registers per thread\": 32,\n      \"shared memory\": 1024,\n      "
              "\"blocks per SM\": 0.484848,\n      \"warps per SM\": 1.939394,\n      \"grid\": "
              "[64, 1, 1],\n      \"block\": [128, 1, 1],\n      "
              "\"est. achieved occupancy %\": 3"));
    flow("ac2g", 'f', number, 7, started);
  }

  void event(const char* category, const std::string& name, int thread, int64_t begin,
             int64_t duration, const std::string& arguments) {
    file_.write(str(events_++ == 0 ? "" : ",", "\n  {\n    \"ph\": \"X\", \"cat\": \"", category,
                    "\", \"name\": \"", name, "\", \"pid\": 9313, \"tid\": ", thread,
                    ",\n    \"ts\": ", microseconds(begin), ", \"dur\": ", microseconds(duration),
                    ",\n    \"args\": {\n      ", arguments, "\n    }\n  }"));
  }
  void flow(const char* name, char phase, int64_t id, int thread, int64_t at) {
    ++events_;
    file_.write(str(",\n  {\n    \"ph\": \"", phase, "\", \"id\": ", id,
                    ", \"pid\": 9313, \"tid\": ", thread, ", \"ts\": ", microseconds(at),
                    ",\n    \"cat\": \"", name, "\", \"name\": \"", name,
                    phase == 'f' ? "\", \"bp\": \"e\"\n  }" : "\"\n  }"));
  }
  static std::string microseconds(int64_t ns) {
    char text[32];
    std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000),
                  static_cast<long long>(ns % 1000));
    return text;
  }
  int64_t advance() { return now_ns_ += 700 + now_ns_ * 31 % 1500; }

  AtomicFile file_;
  uint64_t events_ = 0;
  int64_t now_ns_ = 4'417'132'288'000'000, device_ns_ = 0;
  int64_t id_ = 0, correlation_ = 0, sequence_ = 0;
};

void run(double megabytes, const std::filesystem::path& folder) {
  const auto path = folder / str("flashstep_trace_bench_", getpid(), ".json");
  auto lap = [begin = measure::steady_seconds()](const char* what,
                                                 const std::string& note) mutable {
    const double now = measure::steady_seconds();
    std::printf("%-34s %8.2f s %10.0f MB peak   %s\n", what, now - begin,
                static_cast<double>(measure::peak_resident_bytes()) / kMegabyte, note.c_str());
    std::fflush(stdout);
    measure::reset_peak_resident();
    begin = measure::steady_seconds();
  };
  std::printf("%s\n", measure::one_line(measure::describe_machine()).c_str());
  const uint64_t events = TraceWriter(path).write(megabytes * kMegabyte);
  lap("write the file",
      str(fixed(static_cast<double>(std::filesystem::file_size(path)) / kMegabyte, 1), " MB, ",
          events, " events, flows among them"));
  {
    const TraceEvents trace = read_chrome_trace(path);
    lap("read it", str(trace.events.size(), " events kept"));
    const Attribution attribution = attribute(trace);
    lap("find pass and range of each", str(attribution.items.size(), " kernels"));
    const ProfileSums sums = sums_of(trace, attribution);
    lap("add up", str(sums.steps, " steps"));
  }
  measure::reset_peak_resident();  // the events are gone
  const BenchReport report = trace_report(path, /*top=*/10);
  lap("all of it, as profile --trace does", "bound: 10 s, 1000 MB");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace flashstep::report

int main(int argc, char** argv) {
  const double megabytes = argc > 1 ? std::atof(argv[1]) : 1000;
  flashstep::report::run(megabytes > 0 ? megabytes : 1000,
                         argc > 2 ? argv[2] : std::filesystem::temp_directory_path().string());
}
