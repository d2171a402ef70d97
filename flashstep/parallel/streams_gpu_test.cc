// Forward on several streams of a GPU: autograd makes each gradient on the stream of its forward,
// and a bucket is sent under that of its last gradient.
#include <functional>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using testing::same_bits;
using torch::Tensor;

// The identity; its backward keeps the stream it runs on busy for milliseconds before the gradient
// is there (40 products of 17 GFLOP).
struct Late : torch::autograd::Function<Late> {
  static Tensor forward(torch::autograd::AutogradContext* /*context*/, const Tensor& x) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    constexpr int64_t kSide = 2048;  // a power of two: every product is 1 exactly
    const auto options = gradients[0].options();
    const Tensor factor = torch::full({kSide, kSide}, 1.0 / kSide, options);
    Tensor one = torch::ones({kSide, kSide}, options);
    for (int i = 0; i < 40; ++i) one = one.matmul(factor);
    return {gradients[0] * one[0][0]};
  }
};

// What `later` gets from now on starts after what `earlier` holds by now.
void put_after(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event reached(later.device_type());
  reached.record(earlier);
  reached.block(later);
}

// Every second parameter is used on another stream, where its gradient is late, and shares a bucket
// with one of the first stream, whose gradient comes at once, and last. Numbers are whole: a mean
// that was taken before a gradient was there is another number.
void expect_exact_means(const Group& group, at::Device device, const ReducerOptions& options) {
  constexpr int kParameters = 6;
  constexpr int64_t kSide = 1500;  // 9 MB
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream own = guard.getStream(device), other = guard.getStreamFromGlobalPool(device);
  std::vector<Tensor> parameters;
  for (int i = 0; i < kParameters; ++i)
    parameters.push_back(torch::ones({kSide, kSide}, device).requires_grad_());
  GradientReducer reducer(parameters, group, options);
  for (int step = 0; step < 4; ++step) {
    for (Tensor& parameter : parameters) parameter.mutable_grad().reset();
    put_after(other, own);
    Tensor loss = torch::zeros({}, device);
    for (int i = 0; i < kParameters; ++i) {
      const double factor = (i + 1.0) * (group.rank() + step);
      Tensor part;
      if (i % 2 == 1) {
        const c10::StreamGuard on_other(other);
        part = (Late::apply(parameters[i]) * factor).sum();
      } else {
        part = (parameters[i] * factor).sum();
      }
      put_after(own, other);
      loss = loss + part;
    }
    loss.backward();
    reducer.finish_gradient_synchronization();
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_TRUE(
          same_bits(parameters[i].grad(),
                    torch::full({kSide, kSide}, (i + 1) * (0.5 + step),
                                torch::TensorOptions().device(device).dtype(torch::kFloat))))
          << "step " << step << ", parameter " << i;
    }
    // Memory of the other stream goes back to it, whatever this one still reads.
    guard.synchronizeDevice(device.index());
  }
}

TEST(GpuRanks, GradientsOfSeveralStreamsAreReducedWhenTheyAreThere) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_on_gpus(2, [](const Group& group, at::Device device) {
    for (const Strategy strategy : {Strategy::kBucketed, Strategy::kOverlapped}) {
      for (const bool flat : {false, true}) {
        for (const bool copies : {false, true}) {
          SCOPED_TRACE(str(strategy_name(strategy), flat ? ", flat" : ", in place",
                           copies ? ", by copies" : ""));
          expect_exact_means(group, device,
                             {.strategy = strategy,
                              .bucket_megabytes = 17,  // two parameters
                              .flat_buckets = flat,
                              .peer_copies = copies});
        }
      }
    }
  });
}

}  // namespace
}  // namespace flashstep
