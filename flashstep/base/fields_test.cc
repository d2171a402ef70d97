#include "flashstep/detail/fields.h"

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

struct Inner {
  int64_t warmup_steps = 100;
  double peak_rate = 1e-3;
  void visit(FieldVisitor& v) {
    v.field("warmup_steps", warmup_steps, {0, 1'000'000}, "steps of linear warm-up");
    v.field("peak_rate", peak_rate, {0.0, 1.0}, "highest learning rate");
  }
};

struct Outer {
  std::string name = "run", kind = "cosine";
  bool fast = false;
  std::vector<std::string> tags{"a"};
  Inner schedule;
  void visit(FieldVisitor& v) {
    v.field("name", name, {}, "what to call it");
    v.field("kind", kind, {"cosine", "linear"}, "shape of the schedule");
    v.field("fast", fast, "hurry");
    v.field("tags", tags, "labels");
    v.section("schedule", schedule, "learning rate");
  }
};

std::string refusal(const std::string& json) {
  return testing::refusal([&] {
    Outer config;
    read_json(config, json, "c.json");
  });
}

TEST(FieldsTest, ReadsWhatIsNamedAndKeepsTheRest) {
  Outer config;
  read_json(config, R"({"fast": true, "schedule": {"warmup_steps": 1e3}, "tags": []})", "c.json");
  EXPECT_TRUE(config.fast);
  EXPECT_EQ(config.schedule.warmup_steps, 1000);
  EXPECT_EQ(config.schedule.peak_rate, 1e-3);
  EXPECT_EQ(config.name, "run");
  EXPECT_TRUE(config.tags.empty());
}

TEST(FieldsTest, WritingAndReadingGiveTheSame) {
  Outer config;
  config.schedule.peak_rate = 0.1 + 0.2;  // needs 17 digits
  config.name = "quote \" and \xC3\xA9";
  Outer again;
  read_json(again, write_json(config), "written");
  EXPECT_EQ(write_json(again), write_json(config));
  EXPECT_EQ(again.schedule.peak_rate, 0.1 + 0.2);
  EXPECT_EQ(again.name, config.name);
}

TEST(FieldsTest, MistakesAreNamedWithWhatWasExpected) {
  EXPECT_EQ(refusal(R"({"schedule": {"warmup_step": 1}})"),
            "c.json: unknown key \"schedule.warmup_step\"; did you mean \"schedule.warmup_steps\" "
            "(0 to 1000000)?");
  EXPECT_EQ(refusal(R"({"warmup_steps": 1})"),
            "c.json: unknown key \"warmup_steps\"; did you mean \"schedule.warmup_steps\" "
            "(0 to 1000000)?");
  EXPECT_EQ(refusal(R"({"zebra": 1})"),
            "c.json: unknown key \"zebra\"; expected one of schedule, name, kind, fast, tags");
  EXPECT_EQ(
      refusal(R"({"schedule": {"warmup_steps": -1}})"),
      "c.json: expected schedule.warmup_steps to be a whole number from 0 to 1000000, got -1");
  EXPECT_EQ(
      refusal(R"({"schedule": {"warmup_steps": 1.5}})"),
      "c.json: expected schedule.warmup_steps to be a whole number from 0 to 1000000, got 1.5");
  EXPECT_EQ(refusal(R"({"schedule": {"warmup_steps": 18446744073709551615}})"),
            "c.json: expected schedule.warmup_steps to be a whole number from 0 to 1000000, got "
            "18446744073709551615");
  EXPECT_EQ(
      refusal(R"({"schedule": {"peak_rate": "fast"}})"),
      "c.json: expected schedule.peak_rate to be a number from 0.0 to 1.0, got the text \"fast\"");
  EXPECT_EQ(refusal(R"({"schedule": 3})"), "c.json: expected schedule to be an object, got 3");
  EXPECT_EQ(refusal(R"({"fast": 1})"), "c.json: expected fast to be true or false, got 1");
  EXPECT_EQ(refusal(R"({"tags": ["a", 2]})"), "c.json: expected tags to be a list of texts, got 2");
  EXPECT_EQ(refusal(R"({"kind": "cosin"})"),
            "c.json: expected kind to be one of cosine, linear, got \"cosin\"; did you mean "
            "\"cosine\"?");
  EXPECT_EQ(refusal("{\n\"fast\": tru}"),
            "c.json: expected JSON, got a mistake at line 2, column 12: syntax error while parsing "
            "value - invalid literal; last read: '\"fast\": tru}'");
  EXPECT_EQ(refusal(R"({"fast": true, "fast": false})"), "c.json: the key \"fast\" stands twice");
  EXPECT_EQ(refusal("[]"), "c.json: expected a JSON object, got a list");
  EXPECT_EQ(refusal(std::string("{}\0more", 7)), "c.json: expected JSON, got a zero byte");
  EXPECT_EQ(refusal(std::string(100'000, '[')), "c.json: expected JSON nested at most 32 deep");
}

TEST(FieldsTest, SetTakesOneAssignment) {
  Outer config;
  set_field(config, "schedule.peak_rate=2e-4");
  set_field(config, "name=4k");
  set_field(config, "tags=[\"x\",\"y\"]");
  EXPECT_EQ(config.schedule.peak_rate, 2e-4);
  EXPECT_EQ(config.name, "4k");
  EXPECT_EQ(config.tags.size(), 2u);
  const auto refuse = [&](const char* assignment) -> std::string {
    try {
      set_field(config, assignment);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refuse("schedule.peak_rat=1"),
            "--set: unknown key \"schedule.peak_rat\"; did you mean \"schedule.peak_rate\" "
            "(0.0 to 1.0)?");
  EXPECT_EQ(refuse("schedule.warmup_steps=\xFF"),
            "--set schedule.warmup_steps: expected schedule.warmup_steps to be a whole number from "
            "0 to 1000000, got the text \"\xEF\xBF\xBD\"");
  EXPECT_EQ(refuse("schedule=5"),
            "--set: expected a field of schedule (schedule.NAME=value), got schedule itself");
  EXPECT_EQ(refuse("fast"), "--set: expected a.b=value, got \"fast\"");
  EXPECT_EQ(refuse("fast=maybe"),
            "--set fast: expected fast to be true or false, got the text \"maybe\"");
}

TEST(FieldsTest, EveryFieldIsDescribed) {
  EXPECT_EQ(field_paths(Outer()),
            (std::vector<std::string>{"name", "kind", "fast", "tags", "schedule.warmup_steps",
                                      "schedule.peak_rate"}));
  const std::string help = describe_fields(Outer());
  EXPECT_NE(help.find("schedule.warmup_steps  steps of linear warm-up"), std::string::npos) << help;
  EXPECT_NE(help.find("cosine | linear; default \"cosine\""), std::string::npos) << help;
}

}  // namespace
}  // namespace flashstep
