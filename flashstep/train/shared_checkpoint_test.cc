// Checkpoints on their way from rank 0 to the others.
#include "flashstep/train/shared_checkpoint.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/measure/cpu_memory.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

using torch::Tensor;

constexpr int64_t kElements = 20000, kParameters = 40;

// Names that hold what separates a parameter's name from what is kept of it.
NamedTensors named_zeros() {
  NamedTensors parameters;
  for (int64_t i = 0; i < kParameters; ++i) {
    parameters.emplace_back(str("block/", i, "@w"), torch::zeros({kElements}));
  }
  return parameters;
}

TEST(ShareState, ComesByParameterAndOnlyWhatIsKeptStays) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const NamedTensors parameters = named_zeros();
    NamedTensors state;  // by kind, as two ranks write it into two files
    if (group.is_first()) {
      for (const char* piece : {"@0:9000/m", "@9000:20000/m"}) {
        for (int64_t i = 0; i < kParameters; ++i) {
          const int64_t numel = piece[1] == '0' ? 9000 : 11000;
          state.emplace_back(parameters[i].first + piece, torch::full({numel}, i, torch::kFloat));
        }
      }
      state.emplace_back("loss_scale", torch::full({}, 7.0));
    }
    const measure::AllocatedBytes allocated;
    size_t calls = 0;
    const NamedTensors kept =
        share_state(std::move(state), parameters, group, [&](NamedTensors part) {
          if (++calls <= static_cast<size_t>(kParameters)) {
            EXPECT_EQ(part.size(), 2u);
            for (const auto& [name, tensor] : part) {
              EXPECT_EQ(name.rfind(parameters[calls - 1].first, 0), 0u) << name;
              EXPECT_TRUE((tensor == static_cast<double>(calls - 1)).all().item<bool>()) << name;
            }
            part.erase(part.begin());
            part[0].second = part[0].second.slice(0, 0, 100).clone();
          }
          return part;
        });
    EXPECT_EQ(calls, static_cast<size_t>(kParameters) + 1);
    ASSERT_EQ(kept.size(), static_cast<size_t>(kParameters) + 1);
    EXPECT_EQ(kept.back().first, "loss_scale");
    EXPECT_EQ(kept.back().second.item<float>(), 7);
    // A parameter's state and the next one's, a comparison's result, what is kept, and a message
    // in each of Gloo's two threads, which let go of it some time after it is there.
    EXPECT_LE(allocated.peak(), 4 * kElements * 4);
  });
}

TEST(ShareCheckpoint, TheOptimizersTensorsStayWithRankZero) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    std::optional<Checkpoint> checkpoint;
    EXPECT_FALSE(share_checkpoint(std::nullopt, group).has_value());
    if (group.is_first()) {
      checkpoint =
          Checkpoint{3, {{"w", torch::ones({2, 3}).t()}}, {{"w/m", torch::ones({6})}}, "{\"a\":1}"};
    }
    checkpoint = share_checkpoint(std::move(checkpoint), group);
    ASSERT_TRUE(checkpoint.has_value());
    EXPECT_EQ(checkpoint->step, 3);
    EXPECT_EQ(checkpoint->state_json, "{\"a\":1}");
    ASSERT_EQ(checkpoint->model.size(), 1u);
    EXPECT_TRUE(checkpoint->model[0].second.equal(torch::ones({3, 2})));
    EXPECT_EQ(checkpoint->optimizer.size(), group.is_first() ? 1u : 0u);
  });
}

}  // namespace
}  // namespace flashstep
