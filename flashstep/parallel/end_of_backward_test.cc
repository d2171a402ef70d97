// The outermost backward ends with the means of the gradients, whatever it goes through.
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/ops.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::PlainToy;
using torch::Tensor;

Tensor rows(int seed) {
  torch::manual_seed(seed);
  return torch::randn({4, 10});
}
Tensor loss_of(const Tensor& y) { return y.square().mean(); }

// The mean over `world_size` ranks of the gradients, by autograd alone.
template <typename M, typename Loss>
std::vector<Tensor> expected_means(M& module, int world_size, const Loss& loss) {
  std::vector<Tensor> parameters, means;
  for (const Tensor& p : module.parameters()) {
    if (p.requires_grad()) parameters.push_back(p);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    const auto gradients = torch::autograd::grad({loss(rank)}, parameters);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Tensor part = gradients[i] / world_size;
      rank == 0 ? means.push_back(part) : static_cast<void>(means[i] += part);
    }
  }
  return means;
}

template <typename M>
void expect_gradients(M& module, const std::vector<Tensor>& expected) {
  size_t next = 0;
  for (const Tensor& p : module.parameters()) {
    if (!p.requires_grad()) continue;
    ASSERT_TRUE(p.grad().defined());
    EXPECT_TRUE(testing::close(p.grad(), expected[next], 1e-6)) << next;
    ++next;
  }
  EXPECT_EQ(next, expected.size());
}

std::vector<Strategy> all_strategies() {
  std::vector<Strategy> strategies;
  for (const auto& name : strategy_names()) strategies.push_back(strategy_by_name(name));
  return strategies;
}

TEST(EndOfBackward, HasTheMeans) {
  on_ranks(2, [](const Group& group) {
    for (const Strategy strategy : all_strategies()) {
      SCOPED_TRACE(strategy_name(strategy));
      for (const bool by_hand_too : {false, true}) {
        DistributedDataParallel net(std::make_shared<PlainToy>(), group, {.strategy = strategy});
        for (int step = 0; step < 3; ++step) {
          const auto input = [&](int rank) { return rows(10 * step + rank); };
          const auto expected = expected_means(*net.module(), 2, [&](int rank) {
            return loss_of(net.module()->forward(input(rank)));
          });
          net.zero_grad();
          loss_of(net(input(group.rank()))).backward();
          expect_gradients(*net.module(), expected);
          if (by_hand_too) net.finish_gradient_synchronization();
          expect_gradients(*net.module(), expected);
        }
      }
    }
  });
}

// Its last layers are recomputed, in a nested backward that ends before the first one's gradient.
struct Recomputed : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(10, 10))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(10, 10))};
  Tensor forward(const Tensor& x) {
    const Tensor y =
        recompute([this](const Tensor& y) { return second(torch::tanh(y)); }, first(x));
    return recompute([this](const Tensor& y) { return second(torch::tanh(y)); }, y);
  }
};

TEST(EndOfBackward, IsNotThatOfANestedOne) {
  on_ranks(2, [](const Group& group) {
    for (const Strategy strategy : {Strategy::kFlat, Strategy::kOverlapped, Strategy::kBucketed}) {
      DistributedDataParallel net(std::make_shared<Recomputed>(), group, {.strategy = strategy});
      for (int step = 0; step < 3; ++step) {
        const auto plain = [&](int rank) {
          Recomputed& m = *net.module();
          const Tensor y = m.second(torch::tanh(m.first(rows(10 * step + rank))));
          return loss_of(m.second(torch::tanh(y)));
        };
        const auto expected = expected_means(*net.module(), 2, plain);
        net.zero_grad();
        loss_of(net(rows(10 * step + group.rank()))).backward();
        expect_gradients(*net.module(), expected);
      }
    }
  });
}

TEST(EndOfBackward, AddsToWhatIsThere) {
  on_ranks(2, [](const Group& group) {
    for (const Strategy strategy : all_strategies()) {
      SCOPED_TRACE(strategy_name(strategy));
      DistributedDataParallel net(std::make_shared<PlainToy>(), group, {.strategy = strategy});
      const auto both = expected_means(*net.module(), 2, [&](int rank) {
        PlainToy& m = *net.module();
        return loss_of(m.forward(rows(rank))) + loss_of(m.forward(rows(50 + rank)));
      });
      for (int step = 0; step < 3; ++step) {
        net.zero_grad();
        // Two backward passes, each with means of its own.
        loss_of(net(rows(group.rank()))).backward();
        loss_of(net(rows(50 + group.rank()))).backward();
        expect_gradients(*net.module(), both);
        // One whose gradients are only added up.
        net.zero_grad();
        {
          const auto no_sync = net.no_sync();
          loss_of(net(rows(group.rank()))).backward();
        }
        loss_of(net(rows(50 + group.rank()))).backward();
        expect_gradients(*net.module(), both);
      }
    }
  });
}

TEST(EndOfBackward, SeveralForwardsAndModels) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel a(torch::nn::Linear(10, 10), group);
    DistributedDataParallel b(std::make_shared<PlainToy>(), group);
    for (int step = 0; step < 3; ++step) {
      a(rows(1));  // without a backward
      {
        const torch::NoGradGuard no_grad;
        EXPECT_FALSE(b(rows(1)).requires_grad());
      }
      const auto loss = [&](auto&& a, auto&& b, int rank) {
        return loss_of(b(a(rows(rank)))) + loss_of(a(rows(50 + rank)));
      };
      const auto expect = [&](auto& module) {
        return expected_means(module, 2, [&](int rank) {
          return loss([&](const Tensor& x) { return a.module()->forward(x); },
                      [&](const Tensor& x) { return b.module()->forward(x); }, rank);
        });
      };
      const auto of_a = expect(*a.module()), of_b = expect(*b.module());
      a.zero_grad();
      b.zero_grad();
      loss(a, b, group.rank()).backward();
      expect_gradients(*a.module(), of_a);
      expect_gradients(*b.module(), of_b);
    }
  });
}

struct Holder {
  Tensor inside;
};
struct Returning : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({2}));
  template <typename T>
  T forward(const T& shape) {
    (void)shape;
    const Tensor y = weight * 2;
    if constexpr (std::is_same_v<T, std::vector<Tensor>>) return {y, y};
    if constexpr (std::is_same_v<T, std::tuple<int, std::optional<Tensor>>>) return {1, y};
    if constexpr (std::is_same_v<T, std::map<std::string, std::array<Tensor, 1>>>)
      return {{"y", {y}}};
    if constexpr (std::is_same_v<T, Holder>) return {y};
  }
};

TEST(EndOfBackward, FindsTensorsInWhatForwardReturns) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel net(std::make_shared<Returning>(), group);
    const Tensor& weight = net.module()->weight;
    const auto mean_after = [&](const Tensor& y) {
      weight.mutable_grad().reset();
      (y.sum() * (group.rank() + 1)).backward();  // 2 and 4
      return weight.grad()[0].item<float>();
    };
    EXPECT_EQ(mean_after(net(std::vector<Tensor>())[1]), 3);
    EXPECT_EQ(mean_after(*std::get<1>(net(std::tuple<int, std::optional<Tensor>>()))), 3);
    EXPECT_EQ(mean_after(net(std::map<std::string, std::array<Tensor, 1>>())["y"][0]), 3);
    EXPECT_FALSE(net.reducer().is_unfinished());
    // Of a struct of somebody's nothing is known: by hand.
    mean_after(net(Holder()).inside);
    EXPECT_TRUE(net.reducer().is_unfinished());
    net.eval();  // of a module without dropout, or one that is fine-tuned
    expect_sentence([&] { net(Holder()); }, {"finish_gradient_synchronization()"});
    {
      const torch::NoGradGuard no_grad;
      net(Holder());
    }
    net.finish_gradient_synchronization();
    EXPECT_EQ(weight.grad()[0].item<float>(), 3);
  });
}

TEST(EndOfBackward, OfInputsAloneSendsNothing) {
  on_ranks(2, [](const Group& group) {
    for (const bool allow_unused : {false, true}) {
      DistributedDataParallel net(torch::nn::Linear(10, 3), group, {.allow_unused = allow_unused});
      if (group.is_first()) {  // the other rank would have to answer
        const Tensor x = rows(1).requires_grad_();
        torch::autograd::grad({loss_of(net(x))}, {x});
      }
      loss_of(net(rows(group.rank()))).backward();
      const auto all = group.all_gather(net.module()->weight.grad()[0][0].item<double>());
      EXPECT_EQ(all[0], all[1]);
    }
  });
}

// Divided means are in nobody's .grad: what would replace them is refused.
TEST(EndOfBackward, DividedMeansAreNotReplaced) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel net(std::make_shared<PlainToy>(), group);
    ShardedOptimizer<torch::optim::SGD> optimizer(net, torch::optim::SGDOptions(0.1),
                                                  {.mode = ShardMode::kFlat});
    for (int step = 0; step < 3; ++step) {
      const auto expected = expected_means(*net.module(), 2, [&](int rank) {
        return loss_of(net.module()->forward(rows(10 * step + rank)));
      });
      const Tensor before = net.module()->fc1->weight.detach().clone();
      loss_of(net(rows(99))).backward();
      const Tensor another = loss_of(net(rows(1)));
      expect_sentence([&] { another.backward(); },
                      {"optimizer's step", "zero_grad()", "no_sync()"});
      optimizer.zero_grad();  // what was computed is let go
      loss_of(net(rows(10 * step + group.rank()))).backward();
      net.finish_gradient_synchronization();  // has been
      optimizer.step();
      EXPECT_TRUE(
          testing::close(net.module()->fc1->weight.detach(), before - 0.1 * expected[0], 1e-6));
    }
  });
}

// Steps in which one rank has no rows, after steps whose backward ended by itself.
TEST(EndOfBackward, ARankWithoutRowsTakesPartByHand) {
  on_ranks(2, [](const Group& group) {
    for (const bool allow_unused : {false, true}) {
      for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
        DistributedDataParallel net(std::make_shared<PlainToy>(), group,
                                    {.allow_unused = allow_unused});
        ShardedOptimizer<torch::optim::SGD> optimizer(net, torch::optim::SGDOptions(0.1),
                                                      {.mode = mode});
        for (int step = 0; step < 6; ++step) {
          optimizer.zero_grad();
          const bool is_uneven = step % 2 == 1;
          if (is_uneven && !group.is_first()) {
            give_zero_gradients(net.reducer());
          } else {
            loss_of(net(rows(10 * step + group.rank()))).backward();
          }
          if (is_uneven) net.finish_gradient_synchronization();
          optimizer.step();
        }
        const auto all = group.all_gather(net.module()->fc3->weight.sum().item<double>());
        EXPECT_EQ(all[0], all[1]);
        EXPECT_TRUE(std::isfinite(all[0]));
      }
    }
  });
}

TEST(EndOfBackward, WrappersMove) {
  const Group group{Environment()};
  std::vector<DistributedDataParallel<PlainToy>> nets;
  for (int i = 0; i < 3; ++i) nets.emplace_back(std::make_shared<PlainToy>(), group);
  for (auto& net : nets) loss_of(net(rows(1))).backward();
}

TEST(EndOfBackward, ABackwardThatThrewIsGivenUp) {
  on_ranks(2, [](const Group& group) {
    for (const Strategy strategy : own_strategies()) {
      SCOPED_TRACE(strategy_name(strategy));
      DistributedDataParallel net(std::make_shared<PlainToy>(), group,
                                  {.strategy = strategy, .bucket_megabytes = 0.0001});
      for (int step = 0; step < 4; ++step) {
        net.zero_grad();
        if (step % 2 == 1) {  // in the middle: later layers have their gradients
          const auto hook = [](const Tensor& gradient) -> Tensor {
            throw std::runtime_error("a loss that breaks off");
            return gradient;
          };
          const Tensor x = rows(step).requires_grad_();
          const Tensor y = net(x);
          x.register_hook(hook);
          EXPECT_THROW(loss_of(y).backward(), std::runtime_error);
          expect_sentence([&] { net(rows(1)); }, {"broken off", "forget_step()"});
          net.reducer().forget_step();
          net.zero_grad();
        }
        const auto expected = expected_means(*net.module(), 2, [&](int rank) {
          return loss_of(net.module()->forward(rows(10 * step + rank)));
        });
        loss_of(net(rows(10 * step + group.rank()))).backward();
        expect_gradients(*net.module(), expected);
      }
    }
  });
}

// Gradients stay where they are (zero_grad without set_to_none), and what was in flight was written
// over those of the next step, on ranks that waited for a slow one.
TEST(EndOfBackward, NothingIsInFlightBehindAStepThatIsGivenUp) {
  on_ranks(2, [](const Group& group) {
    for (const Strategy strategy : own_strategies()) {
      SCOPED_TRACE(strategy_name(strategy));
      DistributedDataParallel net(std::make_shared<PlainToy>(), group,
                                  {.strategy = strategy, .bucket_megabytes = 0.0001});
      const auto backward = [&](double scale, bool breaks_off) {
        net.zero_grad(/*set_to_none=*/false);
        const Tensor x = rows(1).requires_grad_();
        const Tensor y = net(x);
        if (breaks_off) {
          x.register_hook([](const Tensor& gradient) -> Tensor {
            throw std::runtime_error("a loss that breaks off");
            return gradient;
          });
          if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
        }
        (scale * loss_of(y)).backward();
      };
      for (int step = 0; step < 3; ++step) backward(1, false);
      const Tensor right = net.module()->fc3->weight.grad().clone();
      for (int step = 0; step < 4; ++step) {
        EXPECT_THROW(backward(1000, true), std::runtime_error);
        net.reducer().forget_step();
        backward(1, false);
        EXPECT_TRUE(torch::equal(net.module()->fc3->weight.grad(), right)) << step;
      }
    }
  });
}

}  // namespace
}  // namespace flashstep
