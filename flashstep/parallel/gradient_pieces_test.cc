// Gradients that come in pieces: of a layer that is used twice, and recomputed in backward.
#include <memory>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using torch::Tensor;

// Runs a layer without keeping what lies inside, and again in backward.
struct Recompute : torch::autograd::Function<Recompute> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const std::shared_ptr<torch::nn::LinearImpl>& layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer.get());
    const torch::NoGradGuard no_grad;
    return layer->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    {
      const torch::AutoGradMode with_grad(true);
      torch::autograd::backward({layer->forward(x)}, {gradients[0]});
    }
    return {x.grad(), Tensor()};
  }
};

struct Recomputing : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 6))};
  torch::nn::Linear shared{register_module("shared", torch::nn::Linear(6, 6))};
  bool recompute = true;

  // `uses` of the shared layer: as many pieces of its gradient.
  Tensor forward(const Tensor& x, int uses = 2) {
    Tensor y = first(x);
    for (int i = 0; i < uses; ++i) {
      y = recompute ? Recompute::apply(y, shared.ptr()) : shared(y);
    }
    return y;
  }
};

void expect_recompute(const Group& group, Strategy strategy) {
  torch::manual_seed(3);
  const ReducerOptions options{.strategy = strategy, .bucket_megabytes = 0.0001};
  DistributedDataParallel wrapped(std::make_shared<Recomputing>(), group, options);
  DistributedDataParallel plain(std::make_shared<Recomputing>(), group, options);
  plain.module()->recompute = false;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) plain.parameters()[i].copy_(wrapped.parameters()[i]);
  }
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(10 * step + group.rank());
    const Tensor x = torch::randn({5, 6});
    for (auto* net : {&wrapped, &plain}) {
      net->zero_grad();
      net->forward(x).pow(2).sum().backward();
      net->finish_gradient_synchronization();
    }
    for (size_t i = 0; i < 4; ++i) {
      const Tensor expected = plain.parameters()[i].grad();
      EXPECT_TRUE(testing::close(wrapped.parameters()[i].grad(), expected,
                                 1e-5 * expected.abs().max().item<double>()))
          << step << ", " << i;
    }
  }
  wrapped.zero_grad();
  const Tensor loss = wrapped.forward(torch::ones({5, 6}), 3).sum();
  expect_sentence([&] { loss.backward(); }, {"shared.", "to come 2 times", "came again"});
}

TEST(Ranks, GradientsThatComeInPiecesAreReducedOnce) {
  on_ranks(2, [](const Group& group) {
    for (const Strategy strategy :
         {Strategy::kNaive, Strategy::kFlat, Strategy::kOverlapped, Strategy::kBucketed}) {
      SCOPED_TRACE(static_cast<int>(strategy));
      expect_recompute(group, strategy);
    }
  });
}

}  // namespace
}  // namespace flashstep
