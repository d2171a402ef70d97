// What --preset stands for.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/bench.h"
#include "apps/commands.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::apps {
namespace {

using Words = std::vector<std::string>;

// A command of the program, which does nothing but take a preset.
class Command {
 public:
  explicit Command(const std::string& name) {
    add_bench(app_);
    add_memory(app_);
    add_profile(app_);
    const bool is_benchmark = name != "memory" && name != "profile";
    if (is_benchmark) start_ = "bench ";
    command_ = (is_benchmark ? app_.get_subcommand("bench") : &app_)->get_subcommand(name);
    start_ += name + " ";
  }

  void parse(const std::string& flags, const std::string& preset = "") {
    command_->parse_complete_callback([=, this] {
      apply_preset(*command_, preset);
      throw Parsed();  // before it does its work
    });
    try {
      app_.parse(start_ + flags);
    } catch (const Parsed&) {
    }
  }
  // What a flag was given, by whomever; nothing of one that there is not.
  Words values(const std::string& flag) const {
    const CLI::Option* option = command_->get_option_no_throw(flag);
    return option == nullptr ? Words() : option->results();
  }

 private:
  struct Parsed {};

  CLI::App app_;
  CLI::App* command_ = nullptr;
  std::string start_;
};

TEST(Presets, AreFlagsWithValuesThatTheirCommandsTake) {
  for (const auto& [name, presets] : tools::command_presets()) {
    for (const auto& [preset, flags] : presets) {
      Command typed(name), chosen(name);
      EXPECT_NO_THROW(typed.parse(str("--preset ", preset, " ", flags))) << name << " " << flags;
      EXPECT_NO_THROW(chosen.parse("", preset)) << name << " " << preset;
      size_t sizes = 0;
      for (const char* flag : {"--size", "--model", "--context", "--precision", "--bucket-mb"}) {
        EXPECT_EQ(chosen.values(flag), typed.values(flag)) << name << " " << preset << " " << flag;
        if (std::string(flag) != "--size" && std::string(flag) != "--model") continue;
        for (const std::string& size : chosen.values(flag)) {
          EXPECT_NO_THROW(tools::model_by_name(size)) << name << " " << preset;
          ++sizes;
        }
      }
      EXPECT_LE(sizes, 5u);
    }
  }
}

TEST(Presets, HaveTheHandoutsLists) {
  Command step("step"), ddp("ddp"), ddp_of_2024("ddp");
  step.parse("", "2025");
  EXPECT_EQ(step.values("--context"), (Words{"128", "256", "512", "1024"}));
  EXPECT_EQ(step.values("--size"), (Words{"small", "medium", "large", "xl", "2.7B"}));
  EXPECT_EQ(step.values("--precision").size() * step.values("--mode").size(), 4u);
  EXPECT_TRUE(step.values("--steps").empty()) << "the default";
  ddp.parse("", "2026");
  EXPECT_EQ(ddp.values("--model"), Words{"xl26"});
  ddp_of_2024.parse("", "2024");
  EXPECT_EQ(ddp_of_2024.values("--model").size(), 5u);
  EXPECT_EQ(ddp_of_2024.values("--batch"), Words{"16"});
  Command norm("norm");
  norm.parse("", "2024");
  EXPECT_EQ(norm.values("--rows"), Words{"50000"});
  EXPECT_EQ(norm.values("--width"), (Words{"1024", "2048", "4096", "8192"}));
}

TEST(Presets, FlagsReplaceThem) {
  Command step("step");
  step.parse("--steps 7 --size tiny", "2024");
  EXPECT_EQ(step.values("--steps"), Words{"7"});
  EXPECT_EQ(step.values("--size"), Words{"tiny"});
  EXPECT_EQ(step.values("--batch"), Words{"16"});
  EXPECT_EQ(step.values("--warmup"), Words{"1"});
}

TEST(Presets, AnotherIsAMistake) {
  EXPECT_THROW(Command("leaderboard").parse("", "2025"), UserError);
  EXPECT_NO_THROW(Command("step").parse("", ""));
}

}  // namespace
}  // namespace flashstep::apps
