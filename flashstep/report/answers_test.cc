// Every answer from real results: short, with numbers, without internal names; and other numbers
// turn its conclusion round.
#include <cmath>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "flashstep/report/stored_results_test.h"

namespace flashstep::tools {
namespace {

using namespace for_tests;
using measure::Cell;

class Answered : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_stored_results()) GTEST_SKIP() << "no reports/ here";
  }
};

TEST_F(Answered, EveryQuestionHasItsNumbers) {
  for (const Question& question : questions()) {
    if (question.answer.empty() || question.answer == "norm_compiled") continue;  // not stored
    const Answer answered = answer(question, stored_results(), {});
    ASSERT_TRUE(answered.measured()) << question.name << " is not measured any more";
    const Finding& finding = answered.parts.front().finding;
    const std::string text = join(finding.sentences, " ");
    EXPECT_LE(finding.sentences.size(), 3u) << text;
    EXPECT_LE(text.size(), 700u) << text;
    EXPECT_TRUE(std::regex_search(text, std::regex("[0-9]"))) << text;
    EXPECT_FALSE(std::regex_search(text, std::regex("_20[0-9]|_n[0-9]|Kernel2|bar |nan|inf ")))
        << text;
    EXPECT_LE(finding.table.rows.size(), 12u) << text;
    EXPECT_EQ(text.back(), '.') << text;
  }
}

// ---- Other numbers

using Change = std::function<void(Result&)>;

// In every table of a section that has these columns.
Change in_tables(const std::string& section, const Columns& columns,
                 const std::function<void(measure::Table&, const std::vector<size_t>&)>& change) {
  return [=](Result& result) {
    for (NamedTable& named : result.tables) {
      std::vector<size_t> at;
      for (const std::string& column : columns) {
        if (const auto found = column_named(named.table, column)) at.push_back(*found);
      }
      if (result.section == section && at.size() == columns.size()) change(named.table, at);
    }
  };
}

Change cells(const std::string& section, const std::string& column,
             const std::function<Cell(const Cell&)>& change) {
  return in_tables(section, {column}, [=](measure::Table& table, const std::vector<size_t>& at) {
    for (auto& row : table.rows) row[at[0]] = change(row[at[0]]);
  });
}

// Two implementations have each other's numbers.
Change swapped(const std::string& section, const std::string& column, const Cell& a,
               const Cell& b) {
  return cells(section, column, [=](const Cell& cell) {
    return cell == a ? b : cell == b ? a : cell;
  });
}

Change columns_swapped(const std::string& section, const std::string& a, const std::string& b) {
  return in_tables(section, {a, b}, [](measure::Table& table, const std::vector<size_t>& at) {
    for (auto& row : table.rows) std::swap(row[at[0]], row[at[1]]);
  });
}

Change each(const std::string& section, const std::string& column,
            const std::function<double(double)>& function) {
  return cells(section, column, [=](const Cell& cell) {
    return cell == Cell() || cell.is_text() ? cell : Cell(function(cell.number()));
  });
}

// A column that nobody could fill, or that another version does not have, costs answers, not the
// report.
TEST_F(Answered, AnyColumnMayBeEmptyOrMissing) {
  std::map<std::string, std::set<std::string>> columns;  // by section
  for (const Result& result : stored_results()) {
    for (const NamedTable& named : result.tables) {
      for (const measure::Column& column : named.table.columns)
        columns[result.section].insert(column.name);
    }
  }
  for (const auto& [section, names] : columns) {
    std::vector<Result> of_section;
    for (const Result& result : stored_results()) {
      if (result.section == section) of_section.push_back(result);
    }
    for (const std::string& name : names) {
      const auto cleared = [](measure::Table& table, const std::vector<size_t>& at) {
        for (auto& row : table.rows) row[at[0]] = Cell();
      };
      const auto renamed = [](measure::Table& table, const std::vector<size_t>& at) {
        table.columns[at[0]].name = "another";
      };
      const auto one_row = [](measure::Table& table, const std::vector<size_t>&) {
        if (table.rows.size() > 1) table.rows.resize(1);
      };
      for (const Change& change :
           {in_tables(section, {name}, cleared), in_tables(section, {name}, renamed),
            in_tables(section, {name}, one_row)}) {
        std::vector<Result> results = of_section;
        for (Result& result : results) change(result);
        for (const Question& question : questions()) {
          if (question.section != section) continue;
          EXPECT_NO_THROW(answer(question, results, {})) << name;
        }
      }
    }
  }
}

double inverse(double value) { return 1 / value; }
double falling(double value) { return 10 - value; }

TEST_F(Answered, ConclusionsTurnRound) {
  const struct {
    const char* question;
    Change change;
    std::string before, after;  // words of the answer
  } cases[] = {
      {"benchmarking_script (b)", swapped("step", "precision", "fp32", "bf16"),
       "to 7.55 (2.7B) times", "0.13 (2.7B) to"},
      {"benchmarking_script (c)", each("step", "mean", [](double) { return 50.0; }),
       "falls into the first steps", "cost no more"},
      {"torch_compile (b)", columns_swapped("step", "tokens", "compiled"), "1.82 times",
       "0.55 times"},
      {"rmsnorm (a)", swapped("norm", "implementation", "naive", "layer_norm"), "only 0.",
       "faster even operation by operation"},
      {"rmsnorm (b)", swapped("norm", "implementation", "naive", "flashstep"),
       "no longer passes through", "does not pay"},
      {"rmsnorm (d)", swapped("profile", "range", "norm", "head"), "at most 1.10", "at most 1."},
      {"nsys_profile (a)", columns_swapped("profile", "timer", "kernels"), "shorter in",
       "longer in"},
      {"nsys_profile (b)", columns_swapped("profile", "in all", "optimizer"), "takes most, ",
       "the same kernel for both in 0 of 30"},
      {"nsys_profile (d)", columns_swapped("profile", "inference share", "step share"),
       "falls in 28 of 40", "rises in 29 of 40"},
      {"nsys_profile (e)", each("profile", "time", inverse), "more than softmax",
       "no more than softmax"},
      {"flame_graph",
       cells("profile", "range",
             [](const Cell& cell) {
               const bool softmax = measure::display(cell, {}).ends_with("> softmax");
               return softmax ? Cell("layers.* > norm") : cell;
             }),
       "softmax is the larger part", "softmax is inside"},
      {"mixed_precision_accumulation",
       swapped("precision", "sum + addend", "float16 + float16", "float32 + float16"),
       "must be kept in float32", "no better here"},
      {"benchmarking_mixed_precision (a)",
       columns_swapped("precision", "CPU, float16", "CUDA, float16"),
       "parameters, LayerNorm output,", "fc1 output, LayerNorm output,"},
      {"benchmarking_mixed_precision (b)",
       columns_swapped("precision", "fp16 sd 300", "bf16 sd 300"), "nothing overflows",
       "does not behave better"},
      {"benchmarking_mixed_precision (c)", each("precision", "gain forward", inverse),
       "0.90 (small) to 2.90 (2.7B)", "0.35 (2.7B) to 1.12 (small)"},
      {"benchmarking_mixed_precision (c)",
       in_tables("precision", {"bf16 forward", "bf16 backward"},
                 [](measure::Table& table, const std::vector<size_t>& at) {
                   for (auto& row : table.rows) row[at[0]] = row[at[1]] = 1.0;
                 }),
       ", not more with every size", ", more with every size"},
      {"benchmarking_mixed_precision (c)",
       in_tables("precision", {"fp32 forward", "gain forward", "gain backward"},
                 [](measure::Table& table, const std::vector<size_t>& at) {
                   auto& largest = table.rows.back();
                   largest[at[0]] = "OOM", largest[at[1]] = largest[at[2]] = Cell();
                 }),
       "(2.7B) (batch 4", "; 2.7B did not fit into memory"},
      {"benchmarking_script (b)",
       in_tables("step", {"precision", "mode"},
                 [](measure::Table& table, const std::vector<size_t>& at) {
                   for (auto& row : table.rows) {
                     if (row[at[0]] == Cell("bf16") && row[at[1]] == Cell("step"))
                       row[at[1]] = "step, bf16 stream";
                   }
                 }),
       " bf16 makes both", " bf16, also of residual stream and gradients, makes both"},
      {"memory_profiling (a)", columns_swapped("memory", "optimizer state", "parameters"),
       "optimizer state (25.4 GiB)", "parameters (25.4 GiB)"},
      {"memory_profiling (c)", swapped("memory", "precision", "fp32", "bf16"), "higher in 4 of 6",
       "lower in 4 of 6"},
      {"memory_profiling (d)", each("memory", "measured", [](double) { return 1.0; }),
       "what the formula says", "NOT what the formula says"},
      {"memory_profiling (f)", each("memory", "saved", [](double value) { return 2 * value; }),
       "within 3.8 % of the formula", "NOT what the formula says"},
      {"pytorch_attention", swapped("attention_grid", "implementation", "naive", "cuda"),
       "255 times smaller", "NOT smaller"},
      {"torch_compile (a)", swapped("attention_grid", "implementation", "naive", "compiled"),
       "0.14 to 1.39), 1.07 times at N 32,768.", "1.23 times"},
      {"flash_forward", each("attention", "wrong", [](double) { return 3.0; }),
       "Right: ", "NOT right: "},
      {"flash_benchmarking", each("attention", "x best peer", inverse), "faster in 172 of 264",
       "slower in 172 of 264"},
      {"leaderboard", each("leaderboard", "x best peer", inverse), "only 0.75 times", "1.34 times"},
      {"distributed_communication_single_node", swapped("allreduce", "backend", "nccl", "gloo"),
       "MB NCCL is 1", "MB NCCL is only 0.0"},
      {"distributed_communication_single_node",
       each("allreduce", "ranks", [](double ranks) { return std::fmin(ranks, 2); }), "[2025] ",
       "for only 2 were measured"},
      {"naive_ddp", each("ddp", "weights", [](double) { return 0.5; }), "bit for bit", "NOT those"},
      {"naive_ddp_benchmarking", swapped("ddp", "wrapper", "none", "naive"), "adds 27.2 %",
       "adds nothing"},
      {"naive_ddp_benchmarking", each("ddp", "communication", [](double) { return 1000.0; }),
       "; in a traced step communication takes ",
       "; in a traced step communication takes 1,000 ms; ranks that send nothing"},
      {"minimal_ddp_flat_benchmarking", swapped("ddp", "wrapper", "naive", "flat"),
       "shorter in all 2 cases", "longer in all 2 cases"},
      {"ddp_overlap_individual_parameters_benchmarking (a)",
       swapped("ddp", "wrapper", "naive", "overlapped"), "the step is 2.5 % longer",
       "the step is 2.5 % shorter"},
      {"ddp_overlap_individual_parameters_benchmarking (a)",
       each("ddp", "exposed", [](double) { return 0.0; }), "Each gradient sent",
       "longer than without communication, 0 ms of it exposed"},
      {"ddp_overlap_individual_parameters_benchmarking (b)",
       swapped("ddp", "wrapper", "naive", "overlapped"), "backward and communication overlap",
       "do not overlap more"},
      {"ddp_bucketed_benchmarking (a)", each("ddp", "step", [](double ms) { return 1e4 / ms; }),
       "those of 1,000 MB (140 ms) are the fastest", "those of 10.0 MB (70.1 ms) are the fastest"},
      {"optimizer_state_sharding", each("sharding", "state", [](double) { return 7.0; }),
       "divided evenly in all", "NOT divided evenly"},
      {"optimizer_state_sharding_accounting (a)",
       in_tables("sharding", {"precision", "optimizer", "parameters", "after init"},
                 [](measure::Table& table, const std::vector<size_t>& at) {
                   for (auto& row : table.rows) {
                     row[at[0]] = "bf16";
                     const double copies = row[at[2]].number() / 2;
                     row[at[3]] = row[at[1]] == Cell("none") ? 8.0 : 8 + copies;
                   }
                 }),
       "it is 7.87 GiB and 7.52 GiB.", " of it 16-bit copies of weights"},
      {"optimizer_state_sharding_accounting (a)",
       in_tables("sharding", {"optimizer", "after update"},
                 [](measure::Table& table, const std::vector<size_t>& at) {
                   for (auto& row : table.rows) row[at[1]] = row[at[0]] == Cell("none") ? 8.0 : 8.5;
                 }),
       "the peak loses ", "the peak rises by 512 MiB: something else sets it."},
      {"optimizer_state_sharding_accounting (b)",
       each("sharding", "step", [](double ms) { return 4e4 / ms; }), "194 ms with shards",
       "182 ms with shards"},
      {"optimizer_state_sharding_accounting (c)", swapped("sharding", "optimizer", "flat", "whole"),
       "gradients take 50 %", "gradients take 200 %"},
      {"alternate_ring_all_reduce",
       each("account", "steps", [](double steps) { return steps + 1; }), "N - 1 times",
       "in 6 steps"},
      {"dp_bound", swapped("account", "bound by", "compute", "communication"),
       "bound by compute and sends nothing", "bound by communication"},
      {"gradient_checkpointing (a)",
       swapped("account", "scheme", "keep everything", "from the start each time"),
       "the scheme \"from the start each time\": 2.11 GiB instead of 65.03",
       "the scheme \"keep everything\""},
      {"gradient_checkpointing (b)", each("memory", "peak memory", inverse),
       "groups of 1 block peak lowest", "groups of 4 blocks peak lowest"},
      {"fsdp", each("sharding", "weight error", [](double) { return 2.0; }), ": right.",
       "NOT right"},
      {"fsdp", each("sharding", "gradient error", [](double) { return NAN; }), ": right.",
       "NOT right"},
      {"fsdp_accounting (b)", columns_swapped("sharding", "traced step", "exposed"),
       "are gathered before they", "are NOT gathered before"},
      {"limits",
       in_tables("limits", {"limit"},
                 [](measure::Table& table, const std::vector<size_t>&) {
                   table.notes.emplace_back("Other programs were running: ...");
                 }),
       "The GPU reaches at most", "rates may be too low"},
      {"matrix", each("matrix", "tokens", inverse), "fastest with attention `auto`",
       "fastest with attention"},
      {"tokenizer", each("tokenizer", "ratio", falling), "times as fast", "-"},
  };
  for (const auto& test : cases) {
    std::vector<Result> results = stored_results();
    const std::string before = answer_text(test.question, results);
    for (Result& result : results) test.change(result);
    const std::string after = answer_text(test.question, results);
    EXPECT_SAYS(before, test.before) << "\n" << test.question;
    EXPECT_SAYS(after, test.after) << "\n" << test.question;
    EXPECT_NE(before, after) << test.question;
  }
}

TEST_F(Answered, AStreamInBf16IsOfTheSamePass) {
  std::vector<Result> results = stored_results();
  const Change name_streams = in_tables(
      "memory", {"mode", "precision"}, [](measure::Table& table, const std::vector<size_t>& at) {
        for (auto& row : table.rows) {
          if (row[at[1]] == Cell("bf16"))
            row[at[0]] = Cell(measure::display(row[at[0]], {}) + ", bf16 stream");
        }
      });
  // Copies of weights that stay beside them are older than the pass.
  for (Result& result : results) {
    name_streams(result);
    columns_swapped("memory", "activations", "other")(result);
  }
  const std::string text = answer_text("memory_profiling (c)", results);
  EXPECT_SAYS(text, "higher in 4 of 6 cases");
  EXPECT_SAYS(text,
              "16-bit copies of the weights lie beside the float32 ones: up to 6.35 GiB more");
}

TEST(Answers, SmallPeaksAreInMebibytes) {
  const auto unit_of = [](double mebibytes) {
    const measure::Table peaks =
        table_of({"size", "context", "mode", "precision", "peak", "peak in"},
                 {{"tiny", 64, "step", "fp32", mebibytes, "backward"},
                  {"tiny", 64, "step", "bf16", mebibytes, "backward"}});
    const std::vector<Result> results = {result_of("memory", "memory_quick", {peaks})};
    const Answer mixed = answer(question_of("memory_profiling (c)"), results, {});
    return mixed.parts.at(0).finding.table.columns.at(3).unit;
  };
  EXPECT_EQ(unit_of(9.47), "MiB");
  EXPECT_EQ(unit_of(2048), "GiB");
}

TEST_F(Answered, TheLeaderboardOf2026IsAnotherCase) {
  std::vector<Result> results = stored_results();
  const Question& question = question_of("leaderboard", "2026");
  const std::string before = text_of(answer(question, results, {}));
  EXPECT_SAYS(before, "takes 4,460 ms with bf16 weights");
  EXPECT_SAYS(before, "PyTorch takes 5,960 ms (FSDP2, compiled)");
  for (Result& result : results) each("leaderboard", "step", inverse)(result);
  EXPECT_SAYS(text_of(answer(question, results, {})), "with fp32 weights: ");
}

// ---- Years

// Of a context's step times as those of another year's preset.
Result step_of(int context, const std::string& measurement) {
  for (Result result : stored_results()) {
    if (result.measurement != str("step_n", context < 1000 ? "0" : "", context, "_2025")) continue;
    result.measurement = measurement;
    return result;
  }
  throw std::invalid_argument("no such context");
}

TEST_F(Answered, EveryYearHasItsOwnPart) {
  const std::vector<Result> results = {step_of(128, "step_n0128_2024"), step_of(512, "step_2026"),
                                       step_of(256, "step_quick")};
  const std::string text = answer_text("benchmarking_script (b)", results);
  EXPECT_SAYS(text, "[2026] In fp32 at context 512");
  EXPECT_SAYS(text, "[2024] In fp32 at context 128");
  EXPECT_LT(text.find("[2026]"), text.find("[2024]"));
  EXPECT_SAYS_NOT(text, "context 256");  // quick's, which nothing falls back on
  EXPECT_EQ(text.find("[2024]"), text.rfind("[2024]")) << "2025 has no part of its own: " << text;
  const Answer quick = answer(question_of("benchmarking_script (b)"), {results.back()}, {});
  EXPECT_TRUE(quick.quick);
  EXPECT_SAYS(text_of(quick), "context 256");
}

TEST_F(Answered, ACaseThatTwoCommandsMeasureIsToldOnce) {
  std::vector<Result> results = {step_of(128, "step_n0128_2025")};
  const std::string text = answer_text("benchmarking_script (b)", results);
  results.push_back(step_of(128, "step_peers_2025"));
  each("step", "forward", [](double) { return 1.0; })(results.back());
  EXPECT_EQ(answer_text("benchmarking_script (b)", results), text);
}

// The command that is named has measured what is counted.
TEST_F(Answered, CasesOfOtherCommandsAreNotCounted) {
  std::vector<Result> results = {step_of(128, "step_n0128_2025")};
  const std::string text = answer_text("benchmarking_script (a)", results);
  results.push_back(step_of(512, "step_n0512_2025"));
  EXPECT_EQ(answer_text("benchmarking_script (a)", results), text);
}

// As preset quick measures on a machine with a GPU.
TEST_F(Answered, TheModelOfBucketsIsOfTheDeviceThatWasAskedFor) {
  const std::string question = "ddp_bucketed_benchmarking (b)";
  std::vector<Result> results = stored_results();
  EXPECT_SAYS(answer_text(question, results), "with nccl");
  for (Result& result : results) {
    if (result.section == "ddp") result.made.command += " --device cpu";
  }
  std::erase_if(results, [](const Result& r) { return r.measurement == "allreduce_nccl_2025"; });
  // Between GPUs through Gloo it is another matter.
  EXPECT_SAYS_NOT(answer_text(question, results), "with gloo");
  for (Result& result : results) swapped("allreduce", "device", "cuda", "cpu")(result);
  EXPECT_SAYS(answer_text(question, results), "with gloo");
}

// ---- Words

TEST(Combine, CountsCasesWithinTwoPercentAsTheSame) {
  const auto words = [](std::vector<std::pair<double, double>> pairs) {
    Tally tally;
    for (const auto& [a, b] : pairs) tally.add(a, b);
    return tally.words("less", "same", "more");
  };
  EXPECT_EQ(words({{97, 100}}), "less");
  EXPECT_EQ(words({{98.1, 100}}), "same");
  EXPECT_EQ(words({{101.9, 100}}), "same");
  EXPECT_EQ(words({{103, 100}, {1, 0.5}}), "more in all 2 cases");
  EXPECT_EQ(words({{103, 100}, {1, 1}, {1, 2}}), "less in 1 of 3 cases, same in 1, more in 1");
  EXPECT_EQ(change_words(100, 101), "the same within 2 %");
  EXPECT_EQ(change_words(100, 92), "8.0 % shorter");
  EXPECT_EQ(speed_words(0.5), "only 0.50 times as fast as");
}

TEST(Combine, MemoryThatIsComparedHasOneUnit) {
  measure::Table table;
  table.columns = {measure::number_column("fp32 peak", "MiB", 2),
                   measure::number_column("bf16 peak", "MiB", 2),
                   measure::number_column("change", "%", 1)};
  table.add_row({1023.0, 512.0, 2000.0});
  say_in_gibibytes(table);
  EXPECT_EQ(table.columns[0].unit + " " + table.columns[1].unit, "MiB MiB");
  table.add_row({2048.0, 1000.0, -51.2});
  table.add_row({"OOM", 1.0, measure::Cell()});
  say_in_gibibytes(table);
  EXPECT_EQ(table.columns[0].unit + " " + table.columns[1].unit, "GiB GiB");
  EXPECT_EQ(table.columns[2].unit, "%");
  EXPECT_EQ(table.rows[1][0], Cell(2.0));
  EXPECT_EQ(table.rows[2][0], Cell("OOM"));
  EXPECT_EQ(table.rows[0][1], Cell(0.5));
  EXPECT_EQ(table.rows[0][2], Cell(2000.0));
}

TEST(Combine, SpansAreSaidOnce) {
  EXPECT_EQ(span_of({2, 1, 3}, 1), "1.0 to 3.0");
  EXPECT_EQ(span_of({2, 2.01}, 1), "2.0");
}

}  // namespace
}  // namespace flashstep::tools
