#include "flashstep/report/document/document.h"

#include <regex>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

namespace fs = std::filesystem;
using for_tests::result_of;
using for_tests::table_of;

std::vector<Result> hostile_results() {
  Result result = result_of(
      "tokenizer", "tokenizer_quick",
      {table_of({"<b>name", "ratio"}, {{"</td><script>alert(1)</script>", 2.0}, {"a|b", 1.5}},
                "Title & <more>")});
  result.tables[0].name = "tokenizer";
  measure::HeatMap map;
  map.title = "Map";
  map.columns = map.rows = {"1"};
  map.values = {2};
  result.pictures.push_back({"map", map});
  result.files = {"runs/tokenizer_quick/trace.json"};
  result.made.command = "flashstep bench tokenizer --peers=";
  result.made.clocks = "processor at 2450 MHz";
  result.made.version = "sources 1";
  return {result};
}

RunRecord run_record() { return {"quick", {}, {{"ddp_2025", "needs 2 GPUs", "ddp"}}}; }

TEST(Document, HtmlIsOneFileWithoutTheNetwork) {
  const std::string html = to_html(make_document(hostile_results(), run_record(), {"a complaint"}));
  EXPECT_SAYS(html, "default-src 'none'");
  EXPECT_SAYS_NOT(html, "<script>alert");
  EXPECT_SAYS(html, "&lt;script&gt;alert(1)");
  EXPECT_SAYS(html, "Title &amp; &lt;more&gt;");
  EXPECT_SAYS(html, "<svg");
  EXPECT_SAYS(html, "data-v=\"1.5\"");
  EXPECT_SAYS(html, "Left out: ddp_2025: needs 2 GPUs.");
  EXPECT_SAYS(html, "a complaint");
  EXPECT_SAYS(html, "processor at 2450 MHz");
  // Addresses: names of XML, places in the page, and files beside it.
  const std::regex address("(src|href)=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), address), end; at != end; ++at) {
    const std::string target = (*at)[2];
    EXPECT_EQ(target.find("//"), std::string::npos) << target;
  }
}

TEST(Document, MarkdownHasTheSame) {
  const std::string markdown = to_markdown(make_document(hostile_results(), run_record(), {}));
  EXPECT_SAYS(markdown, "## Tokenizer");
  EXPECT_SAYS(markdown, "Ours is 1.73 times as fast as the peers");
  EXPECT_SAYS(markdown, "![Map](pictures/tokenizer_quick_map.svg)");
  EXPECT_SAYS(markdown, "Left out: ddp_2025: needs 2 GPUs.");
  EXPECT_SAYS(markdown, "`flashstep bench tokenizer --peers=`; a machine");
}

TEST(Document, CountsItsAnswers) {
  const Document document = make_document(hostile_results(), run_record(), {});
  EXPECT_EQ(document.asked(), questions().size());
  EXPECT_EQ(document.measured(), 1u);
  const Document part = make_document(hostile_results(), {"quick", {"tokenizer"}, {}}, {});
  ASSERT_EQ(part.sections.size(), 1u);
  EXPECT_EQ(part.asked(), 1u);
  EXPECT_SAYS(to_markdown(part), "Only these sections were asked for: tokenizer");
  EXPECT_SAYS_NOT(to_markdown(document), "Only these sections");
}

TEST(Document, AYearLeavesTheOthersQuestions) {
  const auto has = [](const std::string& preset, const std::string& name) {
    return to_markdown(make_document({}, {preset, {}, {}}, {})).find("### " + name) !=
           std::string::npos;
  };
  EXPECT_TRUE(has("2024", "flame_graph"));
  EXPECT_FALSE(has("2025", "flame_graph"));
  EXPECT_TRUE(has("2025", "communication_accounting (a)"));
  EXPECT_FALSE(has("2026", "communication_accounting (a)"));
  EXPECT_TRUE(has("2026", "fsdp"));
  EXPECT_TRUE(has("all", "flame_graph"));
  EXPECT_TRUE(has("all", "fsdp"));
}

TEST(Document, SaysWhereMachinesAndVersionsDiffer) {
  std::vector<Result> results = hostile_results();
  EXPECT_TRUE(make_document(results, run_record(), {}).remarks.empty());
  results.push_back(results[0]);
  results[1].measurement = "tokenizer";
  results[1].made.machine = "another machine";
  results[1].made.version = "sources 2";
  const auto remarks = make_document(results, run_record(), {}).remarks;
  ASSERT_EQ(remarks.size(), 2u);
  EXPECT_SAYS(remarks[0], "a machine; another machine");
  EXPECT_SAYS(remarks[1], "several versions");
}

TEST(Document, WritesEachTableAndPictureByItself) {
  const fs::path folder = fs::path(::testing::TempDir()) / "document_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  write_document(make_document(hostile_results(), run_record(), {}), folder);
  for (const char* name : {"report.html", "report.md", "tables/tokenizer_quick.csv",
                           "tables/tokenizer_quick.md", "tables/tokenizer_quick.tex",
                           "tables/tokenizer_quick.json", "pictures/tokenizer_quick_map.svg"}) {
    EXPECT_GT(fs::file_size(folder / name), 0u) << name;
  }
  const auto table =
      measure::table_from_json(read_file(folder / "tables/tokenizer_quick.json"), "");
  EXPECT_EQ(table.rows.size(), 2u);
  const std::string origin =
      "flashstep bench tokenizer --peers=; a machine; processor at 2450 MHz; sources 1; ";
  ASSERT_FALSE(table.notes.empty());
  EXPECT_TRUE(table.notes.back().starts_with(origin)) << table.notes.back();
  const std::string csv = read_file(folder / "tables/tokenizer_quick.csv");
  EXPECT_TRUE(csv.starts_with("# " + origin)) << csv;
  EXPECT_EQ(csv.substr(csv.find("\r\n") + 2, 13), "<b>name,ratio") << csv;
  EXPECT_EQ(csv.find('#', 1), std::string::npos) << "a reader of comments takes it for one";
  EXPECT_SAYS(read_file(folder / "tables/tokenizer_quick.tex"), "processor at 2450 MHz");
  EXPECT_SAYS(read_file(folder / "pictures/tokenizer_quick_map.svg"), "2450 MHz");
  fs::remove_all(folder);
}

TEST(Document, TheRecordComesBackOrIsRefused) {
  const fs::path folder = fs::path(::testing::TempDir()) / "record_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  EXPECT_EQ(read_record(folder).preset, "quick");
  write_record({"2025", {"ddp"}, run_record().left_out}, folder);
  const RunRecord back = read_record(folder);
  EXPECT_EQ(back.preset, "2025");
  EXPECT_EQ(back.only, std::vector<std::string>{"ddp"});
  ASSERT_EQ(back.left_out.size(), 1u);
  EXPECT_EQ(back.left_out[0].section, "ddp");
  write_file(folder / "report.json", "{\"preset\"");
  EXPECT_THROW(read_record(folder), UserError);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace flashstep::report
