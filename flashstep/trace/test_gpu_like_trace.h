// For tests: a small trace as Kineto writes it on a GPU, all of whose numbers are known. One step
// of 100 us on the host: forward 10 to 40, backward 40 to 70 (on a thread of its own), optimizer 70
// to 90. Kernels run later than they are launched.
#pragma once

#include <string>
#include <vector>

#include "flashstep/base/text.h"

namespace flashstep::tools {

class TraceText {
 public:
  // Times count from `origin` (us), numbers of events, launches and nodes from `first`.
  explicit TraceText(double origin = 1e6, int first = 0) : origin_(origin), first_(first) {}

  // Host events on `thread`; times in microseconds. `rest` are further arguments.
  TraceText& host(const char* category, const std::string& name, int thread, double begin,
                  double duration, int id, const std::string& rest = "") {
    return event(category, name, thread, begin, duration,
                 str("\"External id\": ", number(id), rest));
  }
  TraceText& device(const char* category, const std::string& name, double begin, double duration,
                    int launched_by, int correlation) {
    return event(category, name, /*thread=*/7, begin, duration,
                 str("\"External id\": ", number(launched_by),
                     ", \"correlation\": ", number(correlation), ", \"device\": 0, \"stream\": 7"));
  }
  TraceText& raw(const std::string& json) {
    events_.push_back(json);
    return *this;
  }
  int number(int id) const { return id == 0 ? 0 : first_ + id; }  // 0: none
  std::string events() const { return join(events_, ",\n"); }
  std::string text() const {
    return str(
        "{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"a "
        "\\\"GPU\\\"\"}],\n",
        "\"traceEvents\": [", events(), "], \"traceName\": \"x\"}");
  }

 private:
  TraceText& event(const char* category, const std::string& name, int thread, double begin,
                   double duration, const std::string& arguments) {
    return raw(str("{\"ph\": \"X\", \"cat\": \"", category, "\", \"name\": \"", name,
                   "\", \"pid\": 1, \"tid\": ", thread, ", \"ts\": ", fixed(origin_ + begin, 3),
                   ", \"dur\": ", fixed(duration, 3), ", \"args\": {", arguments, "}}"));
  }

  double origin_;
  int first_;
  std::vector<std::string> events_;
};

inline void add_gpu_like_step(TraceText& trace) {
  constexpr int kMain = 100, kAutograd = 101;
  const std::string mm =
      ", \"Input type\": [\"float\", \"float\"], \"Input Dims\": [[4, 8], [8, 16]]";
  const std::string mm_back =
      ", \"Input type\": [\"float\", \"float\"], \"Input Dims\": [[8, 4], [4, 16]]";
  const auto forward = [&](int sequence) {
    return str(", \"Sequence number\": ", trace.number(sequence), ", \"Fwd thread id\": 0");
  };
  const auto node = [&](int sequence) {
    return str(", \"Sequence number\": ", trace.number(sequence), ", \"Fwd thread id\": 1");
  };
  const auto launch = [&](int correlation) {
    return str(", \"correlation\": ", trace.number(correlation));
  };
  trace.raw("{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, \"args\": {\"name\": \"x\"}}")
      .host("user_annotation", "warm-up", kMain, -50, 40, 1)
      .host("cpu_op", "aten::mm", kMain, -40, 5, 2, mm)
      .device("kernel", "nvjet_tst_64x64", -30, 10, 2, 11)
      .host("user_annotation", "step", kMain, 0, 100, 3)
      .host("user_annotation", "forward", kMain, 10, 30, 4, forward(5))
      // Two blocks; what "norm" does, no operator tells (its node is 5).
      .host("user_annotation", "layers.0", kMain, 12, 12, 5, forward(5))
      .host("user_annotation", "norm", kMain, 13, 2, 6, forward(5))
      .host("user_annotation", "attention", kMain, 15, 8, 7, forward(6))
      .host("cpu_op", "aten::matmul", kMain, 16, 5, 8, forward(6) + mm)
      .host("cpu_op", "aten::mm", kMain, 17, 3, 9, forward(6) + mm)
      .host("cuda_runtime", "cudaLaunchKernel", kMain, 18, 1, 9, launch(12))
      .host("user_annotation", "layers.1", kMain, 25, 10, 10, forward(7))
      .host("cpu_op", "aten::softmax", kMain, 26, 4, 11, forward(7))
      .host("cpu_op", "aten::_softmax", kMain, 27, 2, 12,
            forward(7) + ", \"Input type\": [\"float\", \"Scalar\"], \"Input Dims\": [[4, 16], []]")
      .device("kernel", "nvjet_tst_64x64", 30, 10, 9, 12)
      .device("kernel", "void softmax_warp_forward<float>(float*)", 42, 5, 12, 13)
      // Kineto repeats ranges on the device, and tells of its own work: no work of the program's.
      .device("gpu_user_annotation", "forward", 30, 17, 4, 0)
      .host("overhead", "Activity Buffer Request", kMain, 33, 1, 0)
      // Backward: softmax of layers.1, mm of layers.0's attention, the node of its norm.
      .host("user_annotation", "backward", kMain, 40, 30, 20)
      .host("cpu_op", "autograd::engine::evaluate_function: SoftmaxBackward0", kAutograd, 41, 8, 21,
            node(7))
      .host("cpu_op", "aten::_softmax_backward_data", kAutograd, 43, 4, 22)
      .host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", kAutograd, 50, 8, 23,
            node(6))
      .host("cpu_op", "aten::mm", kAutograd, 51, 4, 24, mm_back)
      .host("cuda_driver", "cuLaunchKernelEx", kAutograd, 52, 1, 24, launch(15))
      .host("cpu_op", "autograd::engine::evaluate_function: CppNode<FusedRmsNorm>", kAutograd, 60,
            8, 25, node(5))
      .host("cpu_op", "aten::sum", kAutograd, 61, 2, 26)
      .device("kernel", "void softmax_warp_backward<float>(float*)", 50, 5, 22, 14)
      .device("kernel", "nvjet_tst_64x64", 56, 20, 24, 15)
      .device("kernel", "void at::native::reduce_kernel<512>(float*)", 76, 2, 26, 16)
      // The optimizer's kernel is known by its launch alone; a copy runs beside it.
      .host("user_annotation", "optimizer", kMain, 70, 20, 30)
      .host("cuda_runtime", "cudaLaunchKernel", kMain, 72, 1, 0, launch(17))
      .device("kernel", "void at::native::multi_tensor_apply_kernel<int>(float*)", 80, 10, 0, 17)
      .device("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 85, 10, 0, 18)
      .raw(
          "{\"ph\": \"f\", \"id\": 3, \"pid\": 1, \"tid\": 7, \"ts\": 1000042.000, \"cat\": "
          "\"ac2g\","
          " \"name\": \"ac2g\", \"bp\": \"e\"}");
}

inline std::string gpu_like_trace() {
  TraceText trace;
  add_gpu_like_step(trace);
  return trace.text();
}

}  // namespace flashstep::tools
