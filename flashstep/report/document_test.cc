#include "flashstep/report/document.h"

#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/stored_results_test.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;
using for_tests::result_of;
using for_tests::stored_results;
using for_tests::table_of;

Document document_of(const std::vector<Result>& results, const RunRecord& record,
                     const std::vector<std::string>& complaints = {}) {
  return make_document(results, make_files(results), record, complaints);
}

std::vector<Result> hostile_results() {
  Result result = result_of(
      "tokenizer", "tokenizer_quick",
      {table_of({"<b>name", "work", "ours", "ratio"},
                {{"</td><script>alert(1)</script>", "a|b", 3.0, 2.0}, {"`", "[x](y)", 1.0, 1.5}},
                "Title & <more>")});
  result.tables[0].name = "tokenizer";
  result.pictures.push_back({"map", for_tests::heat_map()});
  result.files = {"runs/tokenizer_quick/trace.json"};
  result.made.command = "flashstep bench tokenizer --peers=";
  result.made.clocks = "processor at 2450 MHz";
  result.made.version = "sources 1";
  return {result};
}

RunRecord run_record() { return {"quick", {}, {{"ddp_2025", "needs 2 GPUs", "ddp"}}}; }

using DocumentFiles = for_tests::FolderTest;

TEST(Document, HtmlIsOneFileWithoutTheNetwork) {
  const std::string html = document_of(hostile_results(), run_record(), {"a complaint"}).html;
  EXPECT_SAYS(html, "default-src 'none'");
  EXPECT_SAYS_NOT(html, "<script>alert");
  EXPECT_SAYS(html, "&lt;script&gt;alert(1)");
  EXPECT_SAYS(html, "Title &amp; &lt;more&gt;");
  EXPECT_SAYS(html, "<svg");
  EXPECT_SAYS(html, "data-v=\"1.5\"");
  EXPECT_SAYS(html, "a complaint");
  EXPECT_SAYS(html, "processor at 2450 MHz");
  // Addresses: names of XML, places in the page, and files beside it.
  const std::regex address("(src|href)=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), address), end; at != end; ++at) {
    const std::string target = (*at)[2];
    EXPECT_EQ(target.find("//"), std::string::npos) << target;
    const bool known =
        target[0] != '#' || html.find("id=\"" + target.substr(1) + "\"") != html.npos;
    EXPECT_TRUE(known) << target;
  }
}

TEST(Document, MarkdownHasTheSame) {
  const std::string markdown = document_of(hostile_results(), run_record()).markdown;
  EXPECT_SAYS(markdown, "Tokenizer\n");
  EXPECT_SAYS(markdown, "Ours is as many times as fast as the others: ");
  EXPECT_SAYS(markdown, "[Map](pictures/tokenizer_quick_map.svg)");
  EXPECT_SAYS(markdown, "| ddp\\_2025 | needs 2 GPUs |");
  EXPECT_SAYS(markdown, "`flashstep bench tokenizer --peers=`");
}

TEST(Document, APresetsMarkdownIsShort) {
  if (!for_tests::has_stored_results()) GTEST_SKIP() << "no reports/ here";
  for (const auto& [folder, preset] : {std::pair("reports/report_h200_2026-11-22", "2025"),
                                       std::pair("reports/report_h200_2026-11-26", "2026")}) {
    const auto results = read_results(for_tests::source_folder() / folder).results;
    const std::string markdown = document_of(results, {preset, {}, {}}).markdown;
    EXPECT_LT(std::ranges::count(markdown, '\n'), 1500) << preset;
  }
}

// What a reader gets of the stored H200 report.
TEST(Document, AReaderFindsTheFindings) {
  if (!for_tests::has_stored_results()) GTEST_SKIP() << "no reports/ here";
  const Document document = document_of(stored_results(), {"2025", {}, {}});
  const std::string &markdown = document.markdown, &html = document.html;
  EXPECT_TRUE(markdown.starts_with("# flashstep on 1 x NVIDIA H200\n")) << markdown.substr(0, 99);
  const std::string first_page = markdown.substr(0, markdown.find("\n## <a id="));
  for (const char* finding : {"\n1. **", "\n2. **", "\n3. **", "\n4. **", "\n5. **", "!["})
    EXPECT_SAYS(first_page, finding);
  EXPECT_SAYS_NOT(markdown, "(bar ");
  EXPECT_SAYS(markdown, "[Memory of 2.7B, batch 4, context 512, fp32, step](");  // kept as drawn
  EXPECT_SAYS_NOT(html, "(bar ");
  // Each table and picture once, folded or not; each link leads somewhere.
  std::set<std::string> files;
  for (const auto& [tables, pictures] : make_files(stored_results())) {
    for (const DocumentTable& table : tables) {
      EXPECT_TRUE(files.insert("tables/" + table.file).second) << table.file;
      EXPECT_SAYS(html, "id=\"table-" + table.file + "\"");
    }
    for (const PictureFile& picture : pictures) {
      EXPECT_TRUE(files.insert("pictures/" + picture.file).second) << picture.file;
      EXPECT_SAYS(html, "id=\"picture-" + picture.file + "\"");
    }
  }
  const std::regex link("\\]\\(((tables|pictures)/[^)]*)\\.(md|csv|svg)\\)");
  for (std::sregex_iterator at(markdown.begin(), markdown.end(), link), end; at != end; ++at)
    EXPECT_EQ(files.count((*at)[1]), 1u) << (*at)[1];
  const std::regex place("\\]\\(#([^)]*)\\)");
  for (std::sregex_iterator at(markdown.begin(), markdown.end(), place), end; at != end; ++at)
    EXPECT_SAYS(markdown, "<a id=\"" + (*at)[1].str() + "\"></a>");
}

TEST(Document, AnImplementationHasOneColour) {
  Result result = result_of("attention", "attention", {});
  measure::Plot a, b;
  a.series = {{.name = "naive", .x = {1}, .y = {1}}, {.name = "ours", .x = {1}, .y = {2}}};
  b.series = {{.name = "ours fp32", .x = {1}, .y = {1}}, {.name = "other", .x = {1}, .y = {5000}}};
  result.pictures = {{"a", a}, {"b", b}};
  const auto drawn = make_files({result});
  // The colour before the name in the legend.
  const auto color = [&](size_t picture, const std::string& name) {
    const std::string& svg = drawn[0].pictures[picture].svg;
    const std::string before = svg.substr(0, svg.find(">" + name + "<"));
    const size_t at = before.rfind("#", before.rfind("<text") - 1);
    return before.substr(at, 7);
  };
  EXPECT_EQ(color(0, "ours"), color(1, "ours fp32"));
  EXPECT_NE(color(0, "naive"), color(0, "ours"));
  EXPECT_NE(color(1, "other"), color(1, "ours fp32"));
}

TEST(Document, CountsItsAnswers) {
  const Document document = document_of(hostile_results(), run_record());
  EXPECT_EQ(document.asked, questions().size());
  EXPECT_EQ(document.measured, 1u);
  const Document part = document_of(hostile_results(), {"quick", {"tokenizer"}, {}});
  EXPECT_EQ(part.asked, 1u);
  EXPECT_SAYS(part.markdown, "Only these sections were asked for: tokenizer");
  EXPECT_SAYS_NOT(document.markdown, "Only these sections");
}

TEST(Document, AYearLeavesTheOthersQuestions) {
  const auto has = [](const std::string& preset, const std::string& name) {
    return contains(document_of({}, {preset, {}, {}}).html, ">" + name + "</td>");
  };
  EXPECT_TRUE(has("2025", "flashstep report --preset 2025 --only ddp")) << "what measures it";
  for (const auto& [question, presets] :
       {std::pair("flame_graph", "2024 all"), std::pair("communication_accounting (a)", "2025 all"),
        std::pair("fsdp", "2026 all")}) {
    for (const char* preset : {"2024", "2025", "2026", "all"})
      EXPECT_EQ(has(preset, question), contains(presets, preset)) << preset << " " << question;
  }
}

// Also where the report's own does not: quick has no leaderboard, and its norms no compiled one.
TEST(Document, NamesAPresetThatMeasuresWhatIsMissing) {
  const auto row_of = [](const std::string& question, const std::vector<Result>& results) {
    const std::string text =
        std::regex_replace(document_of(results, {"quick", {}, {}}).markdown, std::regex(" +"), " ");
    const size_t at = text.find("| " + question + " |", text.find("id=\"missing\""));
    return at == text.npos ? std::string() : text.substr(at, text.find('\n', at) - at);
  };
  for (const auto& [question, command] :
       {std::pair("leaderboard", "2025 --only leaderboard |"),
        {"fsdp", "2026 --only sharding |"},
        {"gradient\\_checkpointing (b)", "2026 --only memory |"},
        {"naive\\_ddp", "quick --only ddp |"},
        {"rmsnorm (c)", "quick --only norm |"},
        {"distributed\\_communication\\_multi\\_node", "needs a second machine | |"}}) {
    EXPECT_SAYS(row_of(question, {}), command);
  }
  const Result norms = result_of("norm", "norm_quick", {table_of({"rows"}, {{1.0}})});
  EXPECT_SAYS(row_of("rmsnorm (c)", {norms}), "2024 --only norm |");
}

TEST(Document, SaysWhatThePresetAsksBeyondTheResults) {
  std::vector<Result> results = {
      result_of("allreduce", "allreduce_2026", {table_of({"backend"}, {{"nccl"}})}),
      result_of("profile", "profile_n0256_2026", {table_of({"model"}, {{"small"}})})};
  results[0].made.machine = "2 x NVIDIA H200 with 140 GiB; a processor";
  results[1].made.machine = "1 x NVIDIA H200 with 140 GiB; a processor";
  RunRecord record = {"2026", {"allreduce", "profile"}, {}};
  add_left_out(results, record);
  std::vector<std::string> left_out;
  for (const LeftOut& out : record.left_out) left_out.push_back(out.what + ": " + out.why);
  EXPECT_EQ(join(left_out, "; "),
            "profile_2026 at the longest context that fits: no command searches for it; "
            "profile_n0512_2026: was not run; profile_n1024_2026: was not run; "
            "allreduce_2026 with more ranks: needs 6 GPUs, this machine has 2");
  add_left_out(results, record);
  EXPECT_EQ(record.left_out.size(), left_out.size()) << "known ones are not told twice";
  const std::string markdown = document_of(results, record).markdown;
  EXPECT_SAYS(markdown, "; [4 parts](#missing) of the preset left out.");
  EXPECT_SAYS(markdown, "Left out: " + left_out.back() + ".");
}

TEST(Document, SaysWhereMachinesAndVersionsDiffer) {
  std::vector<Result> results = hostile_results();
  EXPECT_SAYS_NOT(document_of(results, run_record()).markdown, "several");
  results.push_back(results[0]);
  results[1].measurement = "tokenizer";
  results[1].made.machine = "another machine";
  results[1].made.version = "sources 2";
  const std::string markdown = document_of(results, run_record()).markdown;
  EXPECT_SAYS(markdown, "several machines: a machine; another machine");
  EXPECT_SAYS(markdown, "several versions");
}

TEST_F(DocumentFiles, WritesEachTableAndPictureByItself) {
  write_files(make_files(hostile_results()), folder_);
  for (const char* name :
       {"tables/tokenizer_quick.csv", "tables/tokenizer_quick.md", "tables/tokenizer_quick.json",
        "pictures/tokenizer_quick_map.svg", "pictures/tokenizer_quick_map.png"}) {
    EXPECT_GT(fs::file_size(folder_ / name), 0u) << name;
  }
  const auto table =
      measure::table_from_json(read_file(folder_ / "tables/tokenizer_quick.json"), "");
  EXPECT_EQ(table.rows.size(), 2u);
  const std::string origin =
      "flashstep bench tokenizer --peers=; a machine; processor at 2450 MHz; sources 1; ";
  ASSERT_FALSE(table.notes.empty());
  EXPECT_TRUE(table.notes.back().starts_with(origin)) << table.notes.back();
  const std::string csv = read_file(folder_ / "tables/tokenizer_quick.csv");
  EXPECT_TRUE(csv.starts_with("# " + origin)) << csv;
  EXPECT_EQ(csv.substr(csv.find("\r\n") + 2, 13), "<b>name,work,") << csv;
  EXPECT_EQ(csv.find('#', 1), std::string::npos) << "a reader of comments takes it for one";
  const std::string svg = read_file(folder_ / "pictures/tokenizer_quick_map.svg");
  EXPECT_SAYS(svg, ">flashstep bench tokenizer --peers=; a machine; sources 1; ");
  EXPECT_SAYS_NOT(svg, "2450 MHz");  // stands with the table
}

TEST_F(DocumentFiles, TheRecordComesBackOrIsRefused) {
  EXPECT_EQ(read_record(folder_).preset, "quick");
  write_record({"2025", {"ddp"}, run_record().left_out}, folder_);
  const RunRecord back = read_record(folder_);
  EXPECT_EQ(back.preset, "2025");
  EXPECT_EQ(back.only, std::vector<std::string>{"ddp"});
  ASSERT_EQ(back.left_out.size(), 1u);
  EXPECT_EQ(back.left_out[0].section, "ddp");
  write_file(folder_ / "report.json", "{\"preset\"");
  EXPECT_THROW(read_record(folder_), UserError);
}

}  // namespace
}  // namespace flashstep::tools
