#include "flashstep/report/document.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "flashstep/base/text.h"

namespace flashstep::tools {
namespace {

constexpr size_t kFindings = 5, kFirstPictures = 4;  // of the first page

// "The size of buckets" -> "q-the-size-of-buckets"
std::string place_of(const Question& question) {
  std::string place = "q-";
  for (const char c : question.title) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter) place += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    if (!letter && place.back() != '-') place += '-';
  }
  return place;
}

// A year's report leaves the other years' questions, unless something answers them.
bool is_asked(const Question& question, const std::string& preset) {
  const bool one_year = preset != "quick" && preset != "all";
  return !one_year || contains(question.years, preset);
}

// Judgements of earlier programs by targets of their own: "(bar 8 %: kept)".
std::string without_bars(const std::string& note) {
  static const std::regex bar(R"( ?\((bar|promised|limit)[^():]*: [A-Za-z]+\)|; bars kept)");
  return std::regex_replace(note, bar, "");
}

DocumentTable table_of(const Result& result, const NamedTable& named) {
  DocumentTable table{stem_of(result, named.name), named.table, result.made};
  for (std::string& note : table.table.notes) note = without_bars(note);
  return table;
}

// The results of a document, and what was made of them.
class DocumentMaker {
 public:
  DocumentMaker(const std::vector<Result>& results, const RunRecord& record)
      : results_(results), record_(record), pictures_(draw_pictures(results)) {
    for (const Result& result : results) {
      for (const NamedTable& named : result.tables)
        document_.tables.push_back(table_of(result, named));
    }
    for (const auto& drawn : pictures_)
      document_.pictures.insert(document_.pictures.end(), drawn.begin(), drawn.end());
  }

  Document make(const std::vector<std::string>& complaints) {
    for (const Section& section : sections()) ask(section);
    Blocks body;
    for (const Section& section : sections()) add_section(section, body);
    add_missing(body);
    add_first_page(complaints);
    Blocks& blocks = document_.page.blocks;
    std::move(body.begin(), body.end(), std::back_inserter(blocks));
    return std::move(document_);
  }

 private:
  void ask(const Section& section) {
    const auto is_here = [&](const Result& result) { return result.section == section.name; };
    if (std::none_of(results_.begin(), results_.end(), is_here) &&
        !is_wanted(record_.only, section.name)) {
      return;
    }
    for (const Question& question : questions()) {
      if (question.section != section.name) continue;
      Answer answered = answer(question, results_, record_.left_out);
      if (!answered.measured && !is_asked(question, record_.preset)) continue;
      ++document_.asked;
      document_.measured += answered.measured;
      for (const AnswerPart& part : answered.parts) {
        if (!part.year.empty()) years_.insert(part.year);
      }
      answers_.push_back(std::move(answered));
    }
  }

  const std::vector<PictureBlock>& pictures_of(const Result& result) const {
    return pictures_[static_cast<size_t>(&result - results_.data())];
  }

  const PictureBlock* picture_of(const AnswerPart& part) const {
    const PictureBlock* found = nullptr;
    if (part.finding.picture.empty()) return found;
    for (const Result* result : part.used) {
      for (const PictureBlock& picture : pictures_of(*result)) {
        const bool all = std::all_of(
            part.finding.picture.begin(), part.finding.picture.end(),
            [&](const std::string& word) { return picture.file.find(word) != picture.file.npos; });
        if (all) found = &picture;
      }
    }
    return found;
  }

  // The answer of one year's preset; `own`: there are others'.
  Blocks part_blocks(const AnswerPart& part, bool own) {
    Blocks blocks;
    blocks.push_back(ProseBlock{(own && !part.year.empty() ? "**" + part.year + ":** " : "") +
                                join(part.finding.sentences, " ")});
    const measure::Table& table = part.finding.table;
    if (!table.columns.empty() && !table.rows.empty()) blocks.push_back(TableBlock{table});
    const PictureBlock* picture = picture_of(part);
    if (picture != nullptr && table.rows.empty() && shown_.insert(picture->file).second) {
      blocks.push_back(*picture);
    }
    return blocks;
  }

  void add_answer(const Answer& answered, Blocks& blocks) {
    const Question& question = *answered.question;
    GroupBlock group{.kind = "answer", .years = question.years};
    group.blocks = {HeadingBlock{3, question.title, place_of(question), question.name},
                    ProseBlock{question.text, "question"}};
    for (const AnswerPart& part : answered.parts) {
      const bool several = answered.parts.size() > 1;
      GroupBlock own{.kind = "part", .blocks = part_blocks(part, several)};
      if (!part.year.empty()) own.years = {part.year};
      group.blocks.push_back(std::move(own));
    }
    if (!answered.missing.empty())
      group.blocks.push_back(ProseBlock{"Not measured: " + answered.missing + ".", "missing"});
    if (answered.quick && record_.preset != "quick")
      group.blocks.push_back(ProseBlock{"Smaller cases than the handout's.", "soft"});
    blocks.push_back(std::move(group));
  }

  Blocks result_blocks(const Result& result) {
    Blocks blocks = {
        HeadingBlock{4, "`" + result.made.command + "`", "result-" + result.measurement}};
    if (!result.failure.empty())
      blocks.push_back(ProseBlock{"It failed: " + result.failure + ".", "remark"});
    for (const NamedTable& named : result.tables) {
      const DocumentTable table = table_of(result, named);
      const std::string title = named.table.title.empty() ? table.file : named.table.title;
      blocks.push_back(FoldBlock{str(title, " (", count_of(named.table.rows.size(), "row"), ")"),
                                 {TableBlock{table.table, table.file}}});
    }
    for (const PictureBlock& picture : pictures_of(result)) {
      if (shown_.count(picture.file) > 0)
        blocks.push_back(ProseBlock{
            str("[", picture.title, "](pictures/", picture.file, ".svg) is shown above."), "soft"});
      else
        blocks.push_back(picture);
    }
    ListBlock files;
    for (const std::string& file : result.files)
      files.items.push_back(str("[", file, "](", file, ")"));
    if (!files.items.empty()) blocks.push_back(std::move(files));
    blocks.push_back(ProseBlock{origin_of(result.made), "soft"});
    return blocks;
  }

  void add_section(const Section& section, Blocks& body) {
    Blocks blocks = {HeadingBlock{2, section.title, section.name},
                     ProseBlock{section.about, "soft"}};
    const size_t empty = blocks.size();
    for (const Answer& answered : answers_) {
      if (answered.question->section == section.name && !answered.parts.empty())
        add_answer(answered, blocks);
    }
    FoldBlock all{"All measurements", {}, "all-" + section.name};
    for (const Result& result : results_) {
      if (result.section != section.name) continue;
      for (Block& block : result_blocks(result)) all.blocks.push_back(std::move(block));
    }
    if (!all.blocks.empty()) blocks.push_back(std::move(all));
    if (blocks.size() == empty) return;
    document_.page.navigation.emplace_back(section.name, section.title);
    body.push_back(GroupBlock{.kind = "section", .blocks = std::move(blocks)});
  }

  void add_missing(Blocks& body) {
    measure::Table missing, left_out;
    missing.columns = {measure::text_column("question"), measure::text_column("of the handout"),
                       measure::text_column("why"), measure::text_column("the command for it")};
    left_out.columns = {measure::text_column("left out"), measure::text_column("why")};
    for (const Answer& answered : answers_) {
      const Question& question = *answered.question;
      const std::string command =
          question.answer.empty() || !answered.parts.empty()
              ? ""
              : str("flashstep report --preset ", record_.preset, " --only ", question.section);
      if (!answered.measured)
        missing.add_row({question.title, question.name, answered.missing, command});
    }
    for (const LeftOut& left : record_.left_out) left_out.add_row({left.what, left.why});
    if (missing.rows.empty() && left_out.rows.empty()) return;
    Blocks blocks = {HeadingBlock{2, "Not measured", "missing"}};
    if (!missing.rows.empty()) {
      blocks.push_back(
          ProseBlock{"A command measures what is missing on a machine that has what it "
                     "needs. With this folder as `--out` it adds that to this report."});
      blocks.push_back(TableBlock{missing});
    }
    if (!left_out.rows.empty())
      blocks.push_back(
          FoldBlock{"What the preset asks for and this machine left out", {TableBlock{left_out}}});
    document_.page.navigation.emplace_back("missing", "Not measured");
    body.push_back(GroupBlock{.kind = "rest", .blocks = std::move(blocks)});
  }

  void add_first_page(const std::vector<std::string>& complaints) {
    Page& page = document_.page;
    page.years.assign(years_.begin(), years_.end());
    const auto latest = std::max_element(
        results_.begin(), results_.end(),
        [](const auto& a, const auto& b) { return a.made.measured_at < b.made.measured_at; });
    const Provenance made = latest == results_.end() ? Provenance() : latest->made;
    const std::string machine = made.machine.substr(0, made.machine.find(';'));
    page.title = "flashstep on " + (machine.empty() ? "no machine yet" : machine);
    Blocks blocks = {HeadingBlock{1, page.title}};
    blocks.push_back(ProseBlock{
        results_.empty() ? "Preset " + record_.preset + "; nothing was measured."
                         : str("Preset ", record_.preset, "; ", made.machine,
                               made.driver.empty() ? "" : ", driver " + made.driver, "; ",
                               made.version, "; last measured ", made.measured_at, "."),
        "soft"});
    const std::string missing =
        document_.measured < document_.asked ? "[not measured](#missing)" : "not measured";
    blocks.push_back(
        ProseBlock{str(document_.measured, " of ", document_.asked, " questions are answered, ",
                       document_.asked - document_.measured, " ", missing, ".")});
    add_findings(blocks);
    for (const auto& remarks : {complaints, differences()}) {
      for (const std::string& remark : remarks) blocks.push_back(ProseBlock{remark, "remark"});
    }
    page.blocks.push_back(GroupBlock{.kind = "summary", .blocks = std::move(blocks)});
  }

  void add_findings(Blocks& blocks) const {
    ListBlock list{{}, true};
    GroupBlock pictures{.kind = "pictures"};
    // The most telling first; places are questions'.
    std::multimap<int, const Answer*> findings;
    for (const Answer& answered : answers_) {
      const int place = answered.question->finding;
      if (place > 0 && !answered.parts.empty()) findings.emplace(place, &answered);
    }
    for (const auto& [place, answered] : findings) {
      if (list.items.size() == kFindings) break;
      const AnswerPart& part = answered->parts.front();
      const std::string& title = answered->question->title;
      list.items.push_back(str("**", title, title.ends_with("?") ? "" : ".", "** ",
                               part.finding.sentences.front(), " [More](#",
                               place_of(*answered->question), ")"));
      const PictureBlock* picture = picture_of(part);
      if (picture == nullptr || pictures.blocks.size() >= kFirstPictures) continue;
      pictures.blocks.push_back(
          PictureBlock{picture->file, picture->title, picture->svg, /*again=*/true});
    }
    if (!list.items.empty()) {
      blocks.push_back(HeadingBlock{2, "In short"});
      blocks.push_back(std::move(list));
    }
    if (!pictures.blocks.empty()) blocks.push_back(std::move(pictures));
  }

  // Machines and versions that the results come from, where they are several.
  std::vector<std::string> differences() const {
    std::vector<std::string> remarks;
    const auto tell_several = [&](const char* what, std::string Provenance::*field) {
      std::set<std::string> all;
      for (const Result& result : results_) all.insert(result.made.*field);
      if (all.size() > 1)
        remarks.push_back(str("The results come from several ", what, ": ",
                              join({all.begin(), all.end()}, "; "), "."));
    };
    tell_several("machines", &Provenance::machine);
    tell_several("versions of the code", &Provenance::version);
    if (!record_.only.empty())
      remarks.push_back(str("Only these sections were asked for: ", join(record_.only),
                            "; the questions of the others are not counted."));
    if (record_.preset == "quick")
      remarks.emplace_back("The preset quick measures smaller cases than the handouts ask for.");
    return remarks;
  }

  const std::vector<Result>& results_;
  const RunRecord& record_;
  std::vector<std::vector<PictureBlock>> pictures_;  // of each result
  std::vector<Answer> answers_;
  std::set<std::string> years_;  // with results of their own
  std::set<std::string> shown_;  // pictures that stand in an answer
  Document document_;
};

}  // namespace

std::string stem_of(const Result& result, const std::string& name) {
  if (result.measurement.rfind(name, 0) == 0) return result.measurement;
  return result.measurement + "_" + name;
}

std::string origin_of(const Provenance& made) {
  return str(made.machine, made.driver.empty() ? "" : ", driver " + made.driver,
             made.clocks.empty() ? "" : "; " + made.clocks, "; ", made.version, "; ",
             made.measured_at, ", ", human_seconds(made.seconds), ".");
}

Document make_document(const std::vector<Result>& results, const RunRecord& record,
                       const std::vector<std::string>& complaints) {
  return DocumentMaker(results, record).make(complaints);
}

}  // namespace flashstep::tools
