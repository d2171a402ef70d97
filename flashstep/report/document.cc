#include "flashstep/report/document.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <ranges>
#include <regex>
#include <set>

#include "flashstep/base/text.h"

namespace flashstep::tools {
namespace {

constexpr size_t kFindings = 5, kFirstPictures = 4;  // of the first page

// "The size of buckets" -> "q-the-size-of-buckets"
std::string place_of(const Question& question) {
  static const std::regex between_words("[^A-Za-z0-9]+");
  std::string place = std::regex_replace("q-" + question.title, between_words, "-");
  for (char& c : place) c = static_cast<char>(std::tolower(c));
  return place;
}

// A year's report leaves the other years' questions, unless something answers them.
bool is_asked(const Question& question, const std::string& preset) {
  const bool one_year = preset != "quick" && preset != "all";
  return !one_year || contains(question.years, preset);
}

// The results of a document, and what was made of them.
class DocumentMaker {
 public:
  DocumentMaker(const std::vector<Result>& results, const std::vector<ResultFiles>& files,
                const RunRecord& record)
      : results_(results), files_(files), record_(record) {}

  Document make(const std::vector<std::string>& complaints) {
    for (const Section& section : sections()) ask(section);
    page_.group("summary", {}, [&] { add_first_page(complaints); });
    for (const Section& section : sections()) add_section(section);
    add_missing();
    document_.html = page_.html({years_.begin(), years_.end()});
    document_.markdown = page_.markdown();
    return std::move(document_);
  }

 private:
  void ask(const Section& section) {
    if (std::ranges::count(results_, section.name, &Result::section) == 0 &&
        !is_wanted(record_.only, section.name)) {
      return;
    }
    for (const Question& question : questions()) {
      if (question.section != section.name) continue;
      Answer answered = answer(question, results_, record_.left_out);
      if (!answered.measured() && !is_asked(question, record_.preset)) continue;
      ++document_.asked;
      document_.measured += answered.measured();
      for (const AnswerPart& part : answered.parts) {
        if (!part.year.empty()) years_.insert(part.year);
      }
      answers_.push_back(std::move(answered));
    }
  }

  const ResultFiles& files_of(const Result& result) const {
    return files_[static_cast<size_t>(&result - results_.data())];
  }

  const PictureFile* picture_of(const AnswerPart& part) const {
    const PictureFile* found = nullptr;
    const std::vector<std::string>& words = part.finding.picture;
    for (const Result* result : part.used) {
      for (const PictureFile& picture : files_of(*result).pictures) {
        const auto is_in = [&](const std::string& word) { return contains(picture.file, word); };
        if (!words.empty() && std::ranges::all_of(words, is_in)) found = &picture;
      }
    }
    return found;
  }

  // The answer of one year's preset; `several`: there are others'.
  void add_part(const AnswerPart& part, bool several) {
    page_.prose((several && !part.year.empty() ? "**" + part.year + ":** " : "") +
                join(part.finding.sentences, " "));
    const measure::Table& table = part.finding.table;
    const bool has_table = !table.columns.empty() && !table.rows.empty();
    if (has_table) page_.table(table);
    // Neighbours share a table, and so its derivation.
    const std::vector<std::string>& derivation = part.finding.derivation;
    if (!derivation.empty() && shown_.insert(part.year + join(derivation, "\n")).second)
      page_.fold("Derivation", "", [&] { page_.list(derivation); });
    const PictureFile* picture = picture_of(part);
    if (picture != nullptr && !has_table && shown_.insert(picture->file).second)
      page_.picture(*picture);
  }

  void add_answer(const Answer& answered) {
    const Question& question = *answered.question;
    page_.heading(3, question.title, place_of(question), question.name);
    page_.prose(question.question, "question");
    for (const AnswerPart& part : answered.parts)
      page_.group("part", {part.year}, [&] { add_part(part, answered.parts.size() > 1); });
    if (!answered.missing.empty())
      page_.prose("Not measured: " + answered.missing + ".", "missing");
    if (answered.quick && record_.preset != "quick")
      page_.prose("Smaller cases than the handout's.", "soft");
  }

  void add_result(const Result& result) {
    page_.heading(4, "`" + result.made.command + "`", "result-" + result.measurement);
    if (!result.failure.empty()) page_.prose("It failed: " + result.failure + ".", "remark");
    for (const auto& [file, table, made] : files_of(result).tables) {
      page_.fold(str(table.title.empty() ? file : table.title, " (",
                     count_of(table.rows.size(), "row"), ")"),
                 "", [&] { page_.table(table, file); });
    }
    for (const PictureFile& picture : files_of(result).pictures) {
      if (shown_.count(picture.file) > 0)
        page_.prose(str("[", picture.title, "](pictures/", picture.file, ".svg) is shown above."),
                    "soft");
      else
        page_.picture(picture);
    }
    std::vector<std::string> files;
    for (const std::string& file : result.files) files.push_back(str("[", file, "](", file, ")"));
    if (!files.empty()) page_.list(files);
    page_.prose(origin_of(result.made), "soft");
  }

  void add_section(const Section& section) {
    auto answered = answers_ | std::views::filter([&](const Answer& one) {
                      return one.question->section == section.name && one.measured();
                    });
    auto measured = results_ | std::views::filter([&](const Result& result) {
                      return result.section == section.name;
                    });
    if (answered.empty() && measured.empty()) return;
    page_.group("section", {}, [&] {
      page_.heading(2, section.title, section.name);
      page_.prose(section.about, "soft");
      std::vector<std::string> left_out;
      for (const LeftOut& out : record_.left_out) {
        if (out.section == section.name) left_out.push_back(out.what + ": " + out.why);
      }
      if (!left_out.empty()) page_.prose("Left out: " + join(left_out, "; ") + ".", "missing");
      for (const Answer& one : answered)
        page_.group("answer", one.question->years, [&] { add_answer(one); });
      if (measured.empty()) return;
      page_.fold("All measurements", "all-" + section.name, [&] {
        for (const Result& result : measured) add_result(result);
      });
    });
  }

  // A preset that measures what answers it: the report's own, unless that is quick and has tried in
  // vain; else the latest year's that does. Empty if none.
  std::string preset_for(const Question& question) const {
    const auto tried = [&](const Result& result) {
      return result.section == question.section && result.failure.empty() &&
             result.measurement.starts_with(question.measurement);
    };
    const bool in_vain = record_.preset == "quick" && std::ranges::any_of(results_, tried);
    std::vector<std::string> presets(question.years.rbegin(), question.years.rend());
    if (!in_vain) presets.insert(presets.begin(), record_.preset);
    const auto measures = [&](const std::string& preset) {
      return preset_measures(preset, question.section, question.measurement);
    };
    const auto found = std::ranges::find_if(presets, measures);
    return found == presets.end() ? "" : *found;
  }

  void add_missing() {
    measure::Table missing, left_out;
    missing.columns = {measure::text_column("question"), measure::text_column("of the handout"),
                       measure::text_column("why"), measure::text_column("the command for it")};
    left_out.columns = {measure::text_column("left out"), measure::text_column("why")};
    for (const Answer& answered : answers_) {
      const Question& question = *answered.question;
      const std::string preset = question.answer.empty() ? "" : preset_for(question);
      const std::string command =
          preset.empty() ? ""
                         : str("flashstep report --preset ", preset, " --only ", question.section);
      if (!answered.measured())
        missing.add_row({question.title, question.name, answered.missing, command});
    }
    for (const LeftOut& left : record_.left_out) left_out.add_row({left.what, left.why});
    if (missing.rows.empty() && left_out.rows.empty()) return;
    page_.group("rest", {}, [&] {
      page_.heading(2, "Not measured", "missing");
      if (!missing.rows.empty()) {
        page_.prose(
            "A command measures what is missing on a machine that has what it needs. With this "
            "folder as `--out` it adds that to this report.");
        page_.table(missing);
      }
      if (!left_out.rows.empty())
        page_.fold("What the preset asks for and was left out", "", [&] { page_.table(left_out); });
    });
  }

  void add_first_page(const std::vector<std::string>& complaints) {
    const auto latest = std::ranges::max_element(
        results_, {}, [](const Result& result) { return result.made.measured_at; });
    const Provenance made = latest == results_.end() ? Provenance() : latest->made;
    std::set<std::string> machines;
    for (const Result& result : results_)
      machines.insert(result.made.machine.substr(0, result.made.machine.find(';')));
    page_.heading(1, "flashstep on " + (machines.empty()
                                            ? "no machine yet"
                                            : join({machines.begin(), machines.end()}, " and ")));
    page_.prose(results_.empty() ? "Preset " + record_.preset + "; nothing was measured."
                                 : str("Preset ", record_.preset, "; ", made.machine,
                                       made.driver.empty() ? "" : ", driver " + made.driver, "; ",
                                       made.version, "; last measured ", made.measured_at, "."),
                "soft");
    const size_t missing = document_.asked - document_.measured, left = record_.left_out.size();
    page_.prose(str(
        document_.measured, " of ", document_.asked, " questions are answered, ", missing,
        missing > 0 ? " [not measured](#missing)" : " not measured",
        left > 0 ? "; [" + count_of(left, "part") + "](#missing) of the preset left out." : "."));
    add_findings();
    for (const auto& remarks : {complaints, differences()}) {
      for (const std::string& remark : remarks) page_.prose(remark, "remark");
    }
  }

  void add_findings() {
    // The most telling first; places are questions'.
    std::multimap<int, const Answer*> findings;
    for (const Answer& answered : answers_) {
      const int place = answered.question->finding;
      if (place > 0 && answered.measured()) findings.emplace(place, &answered);
    }
    std::vector<std::string> lines;
    std::vector<const PictureFile*> pictures;
    for (const auto& [place, answered] : findings) {
      if (lines.size() == kFindings) break;
      const AnswerPart& part = answered->parts.front();
      const std::string& title = answered->question->title;
      lines.push_back(str("**", title, title.ends_with("?") ? "" : ".", "** ",
                          part.finding.sentences.front(), " [More](#",
                          place_of(*answered->question), ")"));
      const PictureFile* picture = picture_of(part);
      if (picture != nullptr && pictures.size() < kFirstPictures) pictures.push_back(picture);
    }
    if (!lines.empty()) {
      page_.heading(2, "In short");
      page_.list(lines, /*numbered=*/true);
    }
    if (pictures.empty()) return;
    page_.group("pictures", {}, [&] {
      for (const PictureFile* picture : pictures) page_.picture(*picture, /*again=*/true);
    });
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
  const std::vector<ResultFiles>& files_;  // of each result
  const RunRecord& record_;
  std::vector<Answer> answers_;
  std::set<std::string> years_;  // with results of their own
  std::set<std::string> shown_;  // in answers: pictures, and derivations
  Page page_;
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

Document make_document(const std::vector<Result>& results, const std::vector<ResultFiles>& files,
                       const RunRecord& record, const std::vector<std::string>& complaints) {
  return DocumentMaker(results, files, record).make(complaints);
}

}  // namespace flashstep::tools
