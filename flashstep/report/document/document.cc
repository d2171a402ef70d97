#include "flashstep/report/document/document.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/plot_frame.h"

namespace flashstep::report {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// "ddp" of measurement "ddp_2025" is "ddp_2025"; "ddp_runs" is "ddp_2025_runs".
std::string stem_of(const Result& result, const std::string& name) {
  if (result.measurement.rfind(name, 0) == 0) return result.measurement;
  return result.measurement + "_" + name;
}

// The machine and moment.
std::string origin_of(const Provenance& made) {
  return str(made.machine, made.driver.empty() ? "" : ", driver " + made.driver,
             made.clocks.empty() ? "" : "; " + made.clocks, "; ", made.version, "; ",
             made.measured_at, ", ", human_seconds(made.seconds), ".");
}

// For files that stand alone.
std::string plainly(const Provenance& made) { return str(made.command, "; ", origin_of(made)); }

// One that is kept as it was drawn has the footnote that it was drawn with.
DocumentPicture picture_in_document(const Result& result, StoredPicture picture) {
  const auto set_footnote = [&](auto& kind) {
    if constexpr (requires { kind.footnote; }) kind.footnote = plainly(result.made);
  };
  std::visit(set_footnote, picture.picture);
  const std::string title = title_of(picture);
  return {stem_of(result, picture.name), title.empty() ? picture.name : title, to_svg(picture)};
}

DocumentResult result_in_document(const Result& result) {
  DocumentResult out{.measurement = result.measurement,
                     .made = result.made,
                     .tables = {},
                     .pictures = {},
                     .files = result.files,
                     .trouble = result.trouble};
  for (const NamedTable& named : result.tables)
    out.tables.push_back({stem_of(result, named.name), named.table, named.name.ends_with("_runs")});
  for (const StoredPicture& picture : result.pictures)
    out.pictures.push_back(picture_in_document(result, picture));
  return out;
}

bool wanted(const RunRecord& record, const std::string& section) {
  return record.only.empty() ||
         std::find(record.only.begin(), record.only.end(), section) != record.only.end();
}

// A year's report leaves the other years' questions, unless something answers them.
bool is_asked(const Question& question, const std::string& preset) {
  const bool one_year = preset != "quick" && preset != "all";
  return !one_year || std::string_view(question.years).find(preset) != std::string_view::npos;
}

// Machines and versions that the results come from, where they are several.
std::vector<std::string> differences(const std::vector<Result>& results) {
  std::set<std::string> machines, versions;
  for (const Result& result : results) {
    machines.insert(result.made.machine);
    versions.insert(result.made.version);
  }
  std::vector<std::string> remarks;
  if (machines.size() > 1) {
    remarks.push_back("The results come from several machines: " +
                      join({machines.begin(), machines.end()}, "; ") + ".");
  }
  if (versions.size() > 1) {
    remarks.push_back("The results come from several versions of the code: " +
                      join({versions.begin(), versions.end()}, "; ") + ".");
  }
  return remarks;
}

std::string subtitle_of(const std::vector<Result>& results, const RunRecord& record) {
  const auto latest = std::max_element(
      results.begin(), results.end(),
      [](const auto& a, const auto& b) { return a.made.measured_at < b.made.measured_at; });
  if (latest == results.end()) return "Preset " + record.preset + "; nothing was measured.";
  return str("Preset ", record.preset, "; ", latest->made.machine,
             latest->made.driver.empty() ? "" : ", driver " + latest->made.driver, "; flashstep, ",
             latest->made.version, "; last measured ", latest->made.measured_at, ".");
}

// Where its numbers come from is a note, and in the CSV, which has none, a first line with "#".
void write_table(const DocumentTable& table, const Provenance& made, const fs::path& folder) {
  const std::string stem = (folder / table.file).string();
  measure::Table noted = table.table;
  noted.notes.push_back(plainly(made));
  write_file(stem + ".csv", str("# ", plainly(made), "\r\n", measure::to_csv(noted)));
  write_file(stem + ".md", measure::to_markdown(noted));
  write_file(stem + ".tex", measure::to_latex(noted));
  write_file(stem + ".json", measure::to_json(noted));
}

// Drawing pictures as PNG is nearly all of the time that a document takes, so every processor draws
// some. The first error ends the others' work and is thrown.
void write_pictures(const Document& document, const fs::path& folder) {
  std::vector<const DocumentPicture*> pictures;
  for (const DocumentSection& section : document.sections) {
    for (const DocumentResult& result : section.results) {
      for (const DocumentPicture& picture : result.pictures) pictures.push_back(&picture);
    }
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < pictures.size(); i = next++) {
      try {
        measure::internal::write_picture(pictures[i]->svg, folder / pictures[i]->file);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = pictures.size();
      }
    }
  };
  {
    const size_t most = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < std::min(most, pictures.size()); ++i) helpers.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

size_t Document::measured() const {
  size_t count = 0;
  for (const DocumentSection& section : sections) {
    for (const Answer& answer : section.answers) count += answer.measured;
  }
  return count;
}

size_t Document::asked() const {
  size_t count = 0;
  for (const DocumentSection& section : sections) count += section.answers.size();
  return count;
}

void write_record(const RunRecord& record, const fs::path& directory) {
  OrderedJson json = {
      {"preset", record.preset}, {"only", record.only}, {"left_out", OrderedJson::array()}};
  for (const LeftOut& left_out : record.left_out) {
    json["left_out"].push_back(
        {{"section", left_out.section}, {"what", left_out.what}, {"why", left_out.why}});
  }
  write_file(directory / "report.json", json.dump(1) + "\n");
}

RunRecord read_record(const fs::path& directory) {
  RunRecord record;
  const fs::path path = directory / "report.json";
  if (!fs::exists(path)) return record;
  try {
    const OrderedJson json = OrderedJson::parse(read_file(path));
    record.preset = json.at("preset").get<std::string>();
    record.only = json.at("only").get<std::vector<std::string>>();
    for (const OrderedJson& entry : json.at("left_out")) {
      record.left_out.push_back({entry.at("what").get<std::string>(),
                                 entry.at("why").get<std::string>(),
                                 entry.at("section").get<std::string>()});
    }
  } catch (const OrderedJson::exception& error) {
    throw UserError(
        str("[report] expected the record of a report in ", path.string(), ": ", error.what()));
  }
  return record;
}

Document make_document(const std::vector<Result>& results, const RunRecord& record,
                       const std::vector<std::string>& complaints) {
  Document document;
  document.title = "flashstep: what was measured";
  document.subtitle = subtitle_of(results, record);
  document.remarks = complaints;
  for (std::string& remark : differences(results)) document.remarks.push_back(std::move(remark));
  if (!record.only.empty()) {
    document.remarks.push_back(str("Only these sections were asked for: ", join(record.only),
                                   "; the questions of the others are not counted."));
  }
  for (const Section& section : sections()) {
    DocumentSection out{.name = section.name,
                        .title = section.title,
                        .about = section.about,
                        .results = {},
                        .left_out = {},
                        .answers = {}};
    for (const Result& result : results) {
      if (result.section == section.name) out.results.push_back(result_in_document(result));
    }
    for (const LeftOut& left_out : record.left_out) {
      if (left_out.section == section.name) out.left_out.push_back(left_out);
    }
    if (!out.results.empty() || wanted(record, section.name)) {
      for (const Question& question : questions()) {
        if (question.section != std::string_view(section.name)) continue;
        Answer answered = answer(question, results, record.left_out);
        if (answered.measured || is_asked(question, record.preset))
          out.answers.push_back(std::move(answered));
      }
    }
    if (!out.results.empty() || !out.left_out.empty() || !out.answers.empty())
      document.sections.push_back(std::move(out));
  }
  return document;
}

void write_document(const Document& document, const fs::path& directory) {
  make_directories(directory / "tables");
  make_directories(directory / "pictures");
  for (const DocumentSection& section : document.sections) {
    for (const DocumentResult& result : section.results) {
      for (const DocumentTable& table : result.tables)
        write_table(table, result.made, directory / "tables");
    }
  }
  write_pictures(document, directory / "pictures");
  write_file(directory / "report.md", to_markdown(document));
  write_file(directory / "report.html", to_html(document));
}

std::string describe(const Provenance& made) {
  return str("`", made.command, "`; ", origin_of(made));
}

}  // namespace flashstep::report
