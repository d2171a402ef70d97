// The files of a document: the report itself, its tables and pictures, and the record of the run.
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/plot_frame.h"
#include "flashstep/report/document/document.h"

namespace flashstep::report {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// Where its numbers come from is a note, and in the CSV, which has none, a first line with "#".
void write_table(const DocumentTable& table, const fs::path& folder) {
  const std::string stem = (folder / table.file).string();
  const std::string origin = str(table.made.command, "; ", origin_of(table.made));
  measure::Table noted = table.table;
  noted.notes.push_back(origin);
  write_file(stem + ".csv", str("# ", origin, "\r\n", measure::to_csv(noted)));
  write_file(stem + ".md", measure::to_markdown(noted));
  write_file(stem + ".json", measure::to_json(noted));
}

// One that is there as it would be drawn stays: drawing it as PNG takes longer than all the rest.
void write_changed(const PictureBlock& picture, const fs::path& folder) {
  const fs::path stem = folder / picture.file;
  const fs::path svg = stem.string() + ".svg";
  if (fs::exists(stem.string() + ".png") && fs::exists(svg) && read_file(svg) == picture.svg)
    return;
  measure::internal::write_picture(picture.svg, stem);
}

// Every processor draws some. The first error ends the others' work and is thrown.
void write_pictures(const std::vector<PictureBlock>& pictures, const fs::path& folder) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < pictures.size(); i = next++) {
      try {
        write_changed(pictures[i], folder);
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

void write_document(const Document& document, const fs::path& directory) {
  make_directories(directory / "tables");
  make_directories(directory / "pictures");
  for (const DocumentTable& table : document.tables) write_table(table, directory / "tables");
  write_pictures(document.pictures, directory / "pictures");
  write_file(directory / "report.md", to_markdown(document.page));
  write_file(directory / "report.html", to_html(document.page));
}

}  // namespace flashstep::report
