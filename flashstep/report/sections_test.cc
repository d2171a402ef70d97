// Presets: every section in each, names that are told apart, needs that are judged.
#include <set>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/report/stored_results_test.h"

namespace flashstep::tools {
namespace {

measure::Machine machine_with(int gpus, uint64_t memory_gib = 24) {
  measure::Machine machine;
  machine.memory_bytes = memory_gib << 30;
  for (int i = 0; i < gpus; ++i)
    machine.gpus.push_back({"NVIDIA H200", uint64_t{141} << 30, 9, 0, 132});
  return machine;
}

TEST(Sections, NamesAreDistinctAndEveryQuestionHasItsSection) {
  std::set<std::string> names;
  for (const Section& section : sections()) EXPECT_TRUE(names.insert(section.name).second);
  for (const Question& question : questions()) {
    EXPECT_TRUE(names.count(question.section)) << question.name;
  }
}

// A measurement of one preset is not taken for that of another.
TEST(Sections, MeasurementsOfOneNameAreTheSame) {
  for (const int gpus : {0, 1, 2, 8}) {
    std::map<std::string, std::vector<std::string>> arguments;
    for (const std::string& preset : report_presets()) {
      for (const Section& section : sections()) {
        for (const Measurement& m : plan_of(section, preset, machine_with(gpus)).measurements) {
          EXPECT_EQ(m.section, section.name);
          EXPECT_GT(m.seconds, 0);
          EXPECT_FALSE(m.arguments.empty());
          EXPECT_EQ(arguments.try_emplace(m.name, m.arguments).first->second, m.arguments)
              << m.name;
        }
      }
    }
  }
}

TEST(Sections, QuickNeedsNoGpuAndIsQuick) {
  double seconds = 0;
  for (const Section& section : sections()) {
    const Plan plan = plan_of(section, "quick", machine_with(0, 4));
    for (const LeftOut& out : plan.left_out) EXPECT_SAYS(out.why, "needs Python's torch");
    const bool gpu_only = section.name == "leaderboard";
    EXPECT_EQ(plan.measurements.empty(), gpu_only) << section.name;
    for (const Measurement& m : plan.measurements) seconds += m.seconds;
  }
  EXPECT_LT(seconds, 300);
}

TEST(Sections, SaysWhatAMachineLacks) {
  const auto left_out = [](const char* section, const char* preset, int gpus) {
    for (const Section& s : sections()) {
      if (s.name == section) return plan_of(s, preset, machine_with(gpus)).left_out;
    }
    return std::vector<LeftOut>();
  };
  ASSERT_EQ(left_out("leaderboard", "2025", 0).size(), 1u);
  EXPECT_EQ(left_out("leaderboard", "2025", 0)[0].why, "needs a GPU, this machine has none");
  EXPECT_TRUE(left_out("leaderboard", "2025", 1).empty());
  ASSERT_EQ(left_out("ddp", "2025", 1).size(), 1u);
  EXPECT_EQ(left_out("ddp", "2025", 1)[0].why, "needs 2 GPUs, this machine has 1");
  EXPECT_TRUE(left_out("ddp", "2025", 2).empty());
  ASSERT_EQ(left_out("ddp", "2024", 2).size(), 2u);
  EXPECT_SAYS(left_out("ddp", "2024", 2)[0].what, "on two machines");
  EXPECT_SAYS(left_out("ddp", "2024", 2)[1].what, "Gloo beside NCCL");
  ASSERT_EQ(left_out("profile", "2026", 1).size(), 1u);
  EXPECT_SAYS(left_out("profile", "2026", 1)[0].what, "longest context that fits");
  EXPECT_SAYS(why_not({.memory_bytes = uint64_t{64} << 30}, machine_with(0)),
              "needs 64.0 GiB of memory, this machine has 24.0 GiB");
  EXPECT_SAYS(why_not({.gpus = 1, .gpu_memory_bytes = uint64_t{200} << 30}, machine_with(1)),
              "of GPU memory");
  EXPECT_THROW(plan_of(sections()[0], "2023", machine_with(0)), UserError);
}

// The handouts' own batches, counts of steps and contexts.
TEST(Sections, PresetsMeasureWhatTheirHandoutAsksFor) {
  const auto line = [](const char* section, const std::string& preset, const std::string& name) {
    for (const Section& s : sections()) {
      if (s.name != section) continue;
      for (const Measurement& m : plan_of(s, preset, machine_with(2)).measurements) {
        if (m.name == name) return join(m.arguments, " ") + " ";
      }
    }
    return std::string("no ") + name;
  };
  const struct {
    const char* year;
    std::vector<std::string> warmup, sizes;
  } presets[] = {
      {"2024",
       {"--context 128 ", "--steps 5 ", "--batch 16 "},
       {"--context 128 ", "--batch 16 ", "small,medium,large,xl,2.7B"}},
      {"2025",
       {"--context 128 ", "--steps 10 ", "--batch 4 "},
       {"--context 128 ", "--batch 4 ", "small,medium,large,xl,2.7B"}},
      {"2026",
       {"--context 512 ", "--steps 10 ", "--batch 4 "},
       {"--context 512 ", "--batch 4 ", "small,medium,large,xl26,10B"}},
  };
  for (const auto& preset : presets) {
    const std::string year = preset.year;
    for (const std::string& words : preset.warmup)
      EXPECT_SAYS(line("step", year, "step_warmup_" + year), words);
    for (const std::string& words : preset.sizes)
      EXPECT_SAYS(line("precision", year, "precision_sizes_" + year), words);
  }
  EXPECT_SAYS(line("memory", "2024", "memory_2024"),
              "--size small,medium,large,xl,2.7B --context 128 ");
  EXPECT_SAYS(line("memory", "2024", "memory_2024"), "--batch 16 ");
  EXPECT_SAYS(line("memory", "2025", "memory_2025"), "--size 2.7B --context 128,256,512 ");
  EXPECT_SAYS(line("memory", "2026", "memory_2026"), "--size xl26 --context 128,2048 ");
  EXPECT_SAYS(line("step", "2024", "step_n0128_2024"), "--warmup 1 --steps 5 --batch 16 ");
  EXPECT_SAYS(line("step", "2026", "step_n0512_2026"), "--warmup 5 --steps 10 --batch 4 ");
  EXPECT_EQ(line("step", "2026", "step_n0256_2026"), "no step_n0256_2026");
  EXPECT_SAYS(line("profile", "2026", "profile_n1024_2026"), "--context 1024 ");
}

TEST(Sections, AllHoldsEveryYear) {
  const auto names = [](const std::string& preset) {
    std::set<std::string> set;
    for (const Section& section : sections()) {
      for (const Measurement& m : plan_of(section, preset, machine_with(8)).measurements)
        set.insert(m.name);
    }
    return set;
  };
  const std::set<std::string> all = names("all");
  for (const char* year : {"2024", "2025", "2026"}) {
    for (const std::string& name : names(year)) EXPECT_TRUE(all.count(name)) << name;
  }
}

// The handouts' problems, whatever their parts: none is forgotten.
TEST(Questions, EveryProblemOfTheHandoutsIsThere) {
  std::map<std::string, std::set<std::string>> problems;
  for (const Question& question : questions()) {
    for (const std::string& year : question.years)
      problems[year].insert(question.name.substr(0, question.name.find(" (")));
  }
  EXPECT_EQ(problems["2024"].size(), 17u);
  EXPECT_EQ(problems["2025"].size(), 22u);
  EXPECT_EQ(problems["2026"].size(), 27u);
  for (const auto& [name, function] : answers()) {
    const bool asked =
        std::any_of(questions().begin(), questions().end(),
                    [&, key = name](const Question& question) { return question.answer == key; });
    EXPECT_TRUE(asked) << name;
  }
}

TEST(Questions, ADamagedHandoutIsNamed) {
  for (const char* json : {"{", "{\"questions\": [{}]}",
                           R"({"questions": [{"name": "a", "section": "step", "title": "A",
                               "question": "A?", "needs": "b", "answer": "nobody"}]})",
                           R"({"questions": [{"name": "a", "section": "step", "title": "A",
                               "question": "A?"}]})"}) {
    try {
      read_handout(json, "mine.json");
      ADD_FAILURE() << json;
    } catch (const UserError& error) {
      EXPECT_SAYS(std::string(error.what()), "mine.json");
    }
  }
}

TEST(Questions, WithoutResultsEveryAnswerSaysWhatIsMissing) {
  for (const Question& question : questions()) {
    const Answer empty = answer(question, {}, {});
    EXPECT_FALSE(empty.measured) << question.name;
    const std::string text = for_tests::text_of(empty);
    EXPECT_TRUE(text.starts_with("Not measured: needs ") || text == "Not measured: was not run. ")
        << text;
    EXPECT_LE(std::count(text.begin(), text.end(), ' '), 10) << text;
  }
}

TEST(Questions, AFailureAndWhatWasLeftOutAreReasons) {
  const Question& question = questions().front();
  Result failed = for_tests::result_of(question.section, "x_2025", {});
  failed.failure = "ended with exit code 1: out of memory";
  EXPECT_EQ(for_tests::text_of(answer(question, {failed}, {})),
            "Not measured: it failed, ended with exit code 1: out of memory. ");
  const LeftOut left_out{"x_2025", "needs a GPU, this machine has none", question.section};
  EXPECT_EQ(for_tests::text_of(answer(question, {}, {left_out})), "Not measured: needs a GPU. ");
}

// Of a section's several measurements the one that would answer gives the reason.
TEST(Questions, TheReasonIsThatOfTheMeasurementThatAnswers) {
  const auto compiled = std::find_if(questions().begin(), questions().end(), [](const auto& q) {
    return std::string(q.name) == "torch_compile (b)";
  });
  ASSERT_NE(compiled, questions().end());
  const std::vector<LeftOut> left_out = {{"step_2025, larger sizes", "needs a GPU", "step"},
                                         {"step_peers_2025", "needs Python's torch", "step"}};
  EXPECT_SAYS(for_tests::text_of(answer(*compiled, {}, left_out)), "needs Python's torch");
  EXPECT_SAYS(for_tests::text_of(answer(questions().front(), {}, left_out)), "needs a GPU");
}

}  // namespace
}  // namespace flashstep::tools
