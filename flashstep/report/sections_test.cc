// Presets: every section in each, names that are told apart, needs that are judged.
#include <map>
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
  const std::vector<std::string> names = section_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const Question& question : questions())
    EXPECT_TRUE(contains(names, question.section)) << question.name;
}

// What a preset asks for in all sections.
Plan plan_for(const std::string& preset, int gpus, const std::string& only = "") {
  Plan all;
  for (const Section& section : sections()) {
    if (!only.empty() && section.name != only) continue;
    const Plan plan = plan_of(section, preset, machine_with(gpus));
    for (const Measurement& m : plan.measurements) {
      EXPECT_EQ(m.section, section.name);
      EXPECT_GT(m.seconds, 0);
      EXPECT_FALSE(m.arguments.empty());
      all.measurements.push_back(m);
    }
    all.left_out.insert(all.left_out.end(), plan.left_out.begin(), plan.left_out.end());
  }
  return all;
}

// Their lines, by name.
std::map<std::string, std::string> lines_of(const Plan& plan) {
  std::map<std::string, std::string> lines;
  for (const Measurement& m : plan.measurements) lines[m.name] = join(m.arguments, " ") + " ";
  return lines;
}

// A measurement of one preset is not taken for that of another.
TEST(Sections, MeasurementsOfOneNameAreTheSame) {
  for (const int gpus : {0, 1, 2, 8}) {
    std::map<std::string, std::string> known;
    for (const std::string& preset : report_presets()) {
      for (const auto& [name, line] : lines_of(plan_for(preset, gpus)))
        EXPECT_EQ(known.try_emplace(name, line).first->second, line) << name;
    }
  }
}

TEST(Sections, QuickNeedsNoGpuAndIsQuick) {
  const Plan plan = plan_for("quick", 0);
  for (const LeftOut& out : plan.left_out) EXPECT_SAYS(out.why, "needs Python's torch");
  std::set<std::string> measured;
  double seconds = 0;
  for (const Measurement& m : plan.measurements) {
    measured.insert(m.section);
    seconds += m.seconds;
  }
  EXPECT_LT(seconds, 300);
  for (const Section& section : sections())
    EXPECT_EQ(measured.count(section.name), section.name != "leaderboard") << section.name;
}

TEST(Sections, SaysWhatAMachineLacks) {
  const struct {
    const char *section, *preset;
    int gpus;
    std::vector<std::string> words;  // in what is left out, and why
  } cases[] = {
      {"leaderboard", "2025", 0, {"leaderboard: needs a GPU, this machine has none"}},
      {"leaderboard", "2025", 1, {}},
      {"ddp", "2025", 1, {": needs 2 GPUs, this machine has 1"}},
      {"ddp", "2025", 2, {}},
      {"ddp", "2024", 2, {"on two machines", "Gloo beside NCCL"}},
      {"profile", "2026", 1, {"longest context that fits"}},
  };
  for (const auto& test : cases) {
    const auto left_out = plan_for(test.preset, test.gpus, test.section).left_out;
    ASSERT_EQ(left_out.size(), test.words.size()) << test.section << " " << test.preset;
    for (size_t i = 0; i < left_out.size(); ++i)
      EXPECT_SAYS(left_out[i].what + ": " + left_out[i].why, test.words[i]);
  }
  EXPECT_SAYS(why_not({.memory_bytes = uint64_t{64} << 30}, machine_with(0)),
              "needs 64.0 GiB of memory, this machine has 24.0 GiB");
  EXPECT_THROW(plan_of(sections()[0], "2023", machine_with(0)), UserError);
}

// The handouts' own batches, counts of steps and contexts.
TEST(Sections, PresetsMeasureWhatTheirHandoutAsksFor) {
  const struct {
    const char *year, *name;  // of the measurement, without the year
    std::vector<std::string> words;
  } cases[] = {
      {"2024", "step_warmup", {"--context 128 ", "--steps 5 ", "--batch 16 "}},
      {"2025", "step_warmup", {"--context 128 ", "--steps 10 ", "--batch 4 "}},
      {"2026", "step_warmup", {"--context 512 ", "--steps 10 ", "--batch 4 "}},
      {"2024", "precision_sizes", {"--context 128 ", "--batch 16 ", "small,medium,large,xl,2.7B"}},
      {"2025", "precision_sizes", {"--context 128 ", "--batch 4 ", "small,medium,large,xl,2.7B"}},
      {"2026", "precision_sizes", {"--context 512 ", "--batch 4 ", "small,medium,large,xl26,10B"}},
      {"2024", "memory", {"--size small,medium,large,xl,2.7B --context 128 ", "--batch 16 "}},
      {"2025", "memory", {"--size 2.7B --context 128,256,512 "}},
      {"2026", "memory", {"--size xl26 --context 128,2048 "}},
      {"2024", "step_n0128", {"--warmup 1 --steps 5 --batch 16 "}},
      {"2026", "step_n0512", {"--warmup 5 --steps 10 --batch 4 "}},
      {"2026", "profile_n1024", {"--context 1024 "}},
  };
  for (const auto& test : cases) {
    auto lines = lines_of(plan_for(test.year, 2));
    for (const std::string& words : test.words)
      EXPECT_SAYS(lines[str(test.name, "_", test.year)], words);
  }
  EXPECT_EQ(lines_of(plan_for("2026", 2)).count("step_n0256_2026"), 0u);
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
    EXPECT_GT(std::ranges::count(questions(), name, &Question::answer), 0) << name;
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
    EXPECT_FALSE(empty.measured()) << question.name;
    const std::string text = for_tests::text_of(empty);
    EXPECT_TRUE(text.starts_with("Not measured: needs ") || text == "Not measured: was not run. ")
        << text;
    EXPECT_LE(std::ranges::count(text, ' '), 10) << text;
  }
}

TEST(Questions, AFailureAndWhatWasLeftOutAreReasons) {
  const Question& first = questions().front();
  Result failed = for_tests::result_of(first.section, "x_2025", {});
  failed.failure = "ended with exit code 1: out of memory";
  EXPECT_EQ(answer(first, {failed}, {}).missing,
            "it failed, ended with exit code 1: out of memory");
  // Of a section's several measurements the one that would answer gives the reason.
  const std::vector<LeftOut> left_out = {
      {"step_2025, larger sizes", "needs a GPU, this machine has none", "step"},
      {"step_peers_2025", "needs Python's torch", "step"}};
  EXPECT_EQ(answer(first, {}, left_out).missing, "needs a GPU");
  EXPECT_EQ(answer(for_tests::question_of("torch_compile (b)"), {}, left_out).missing,
            "needs Python's torch");
}

}  // namespace
}  // namespace flashstep::tools
