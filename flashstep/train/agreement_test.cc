#include "flashstep/train/agreement.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

// What the first rank says; the others must say the same.
std::string difference(const Config& config, c10::DeviceType device, const Group& group) {
  std::string sentence = "no difference";
  try {
    check_same_config(config, device, group);
  } catch (const UserError& error) {
    sentence = error.what();
  }
  for (const std::string& other : group.all_gather(sentence)) EXPECT_EQ(other, sentence);
  return sentence;
}

TEST(Agreement, NamesTheFirstFieldThatDiffersAndTheRank) {
  using Change = std::function<void(Config&)>;
  const std::string begin = "[train] expected the same configuration and data on every rank, got ";
  const std::pair<Change, std::string> cases[] = {
      {[](Config& c) { c.train.batch_size = 7; },
       "train.batch_size = 16 on rank 0 and train.batch_size = 7 on rank 1"},
      {[](Config& c) { c.train.seed = 5; }, "train.seed = 1 on rank 0 and train.seed = 5 on"},
      {[](Config& c) { c.schedule.learning_rate = 0.5; }, "schedule.learning_rate = "},
      {[](Config& c) { c.schedule.warmup_steps = c.train.seed = 5; }, "schedule.warmup_steps = "},
      {[](Config& c) { c.parallel.wrapper = "naive"; },
       "parallel.wrapper = \"bucketed\" on rank 0"},
      {[](Config& c) { c.parallel.bucket_megabytes = 3; }, "parallel.bucket_megabytes = "},
      {[](Config& c) { c.parallel.shard_optimizer = "flat"; }, "parallel.shard_optimizer = "},
      {[](Config& c) { c.model.num_layers += 1; }, "model.num_layers = "},
      {[](Config& c) { c.tokenizer.special_tokens = {"<a\nb>"}; }, "tokenizer.special_tokens = "}};
  testing::run_ranks(2, [&](const Environment& environment) {
    const Group group(environment);
    for (const auto& [change, sentence] : cases) {
      Config config;
      config.train.batch_size = 16;
      config.train.seed = 1;
      if (group.rank() == 1) change(config);
      EXPECT_EQ(difference(config, c10::kCPU, group).find(begin + sentence), 0u)
          << sentence << "\n"
          << difference(config, c10::kCPU, group);
    }
    EXPECT_EQ(difference({}, group.is_first() ? c10::kCUDA : c10::kCPU, group),
              begin + "train.device = \"cuda\" on rank 0 and train.device = \"cpu\" on rank 1");
  });
}

TEST(Agreement, MachinesMayDifferInPathsAndThreads) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    Config config;
    if (group.rank() == 1) {
      config.text.source = config.text.validation = config.text.directory = "/elsewhere";
      config.text.base_url = "http://mirror";
      config.tokenizer.path = config.tokens.train = config.tokens.validation = "/elsewhere";
      config.train.init_from = "/elsewhere";
      config.tokenizer.threads = config.train.threads = 3;
      config.train.device = "cpu";  // what "auto" is there
    }
    EXPECT_EQ(difference(config, c10::kCPU, group), "no difference");
  });
}

}  // namespace
}  // namespace flashstep
