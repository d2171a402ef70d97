// What DistributedDataParallel costs a parameter when there is nobody to send to: one rank, 1,000
// parameters of 4 elements, forward and backward.
#include <cstdio>
#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/text.h"
#include "flashstep/data_parallel.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/stats.h"

namespace flashstep {
namespace {

constexpr int kParameters = 1000, kTurns = 41;

struct Many : torch::nn::Module {
  std::vector<torch::Tensor> weights;
  Many() {
    for (int i = 0; i < kParameters; ++i)
      weights.push_back(register_parameter(str("weight", i), torch::randn({4})));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& weight : weights) x = x + weight;
    return x;
  }
};

template <typename Module>
double microseconds(Module& module) {
  const torch::Tensor x = torch::ones({4});
  const double start = measure::steady_seconds();
  module.zero_grad();
  module.forward(x).sum().backward();
  return (measure::steady_seconds() - start) * 1e6;
}

}  // namespace
}  // namespace flashstep

int main() {
  using namespace flashstep;
  torch::set_num_threads(1);
  const Group group{Environment()};
  Many plain;
  DistributedDataParallel wrapped(std::make_shared<Many>(), group);
  std::vector<double> without, with;
  for (int turn = 0; turn < kTurns; ++turn) {  // in turns; the first warms up
    without.push_back(microseconds(plain));
    with.push_back(microseconds(wrapped));
  }
  without.erase(without.begin());
  with.erase(with.begin());
  const double alone = measure::median(without), wrapped_time = measure::median(with);
  std::printf("%d parameters: module %.1f us, wrapped %.1f us, %.3f us a parameter\n", kParameters,
              alone, wrapped_time, (wrapped_time - alone) / kParameters);
}
