// The files of a document: the report itself, its tables and pictures, and the record of the run.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <map>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/document.h"

namespace flashstep::tools {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LeftOut, section, what, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunRecord, preset, only, left_out)

namespace {

// The pictures of a document: their colours, axes and footnotes.

constexpr int kColors = 7;         // of the palette that are told apart
constexpr double kDecades = 1000;  // from here on a linear axis hides the small values

// "naive fp32" is naive: what an implementation computes in is another thing.
std::string implementation_of(const std::string& series) {
  for (const char* dtype : {" fp32", " bf16", " fp16"}) {
    if (series.ends_with(dtype)) return series.substr(0, series.size() - 5);
  }
  return series;
}

// One colour for a name in all pictures. A name that is new gets one that no other of its picture
// has; where two that have the same one meet, the later one is another colour there.
class SeriesColors {
 public:
  void paint(measure::Plot& plot) {
    std::set<int> taken;
    for (measure::Series& series : plot.series) {
      const auto known = colors_.find(implementation_of(series.name));
      if (series.color != measure::kNextColor || known == colors_.end()) continue;
      if (taken.insert(known->second).second) series.color = known->second;
    }
    for (measure::Series& series : plot.series) {
      if (series.color != measure::kNextColor) continue;
      int color = 0;
      while (taken.count(color) > 0) ++color;
      taken.insert(color);
      series.color = color;
      if (color < kColors) colors_.emplace(implementation_of(series.name), color);
    }
  }

 private:
  std::map<std::string, int> colors_;
};

// Lines whose values span decades need a logarithmic axis.
void choose_scale(measure::Plot& plot) {
  double least = INFINITY, most = 0;
  for (const measure::Series& series : plot.series) {
    for (const double y : series.y) {
      if (y <= 0) return;
      if (std::isfinite(y)) least = std::min(least, y), most = std::max(most, y);
    }
  }
  if (plot.y.scale == measure::Scale::kLinear && most / least > kDecades)
    plot.y = {plot.y.label, measure::Scale::kLog, std::nullopt};
}

namespace fs = std::filesystem;
using Json = nlohmann::json;

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
void write_changed(const PictureFile& picture, const fs::path& folder) {
  const fs::path stem = folder / picture.file;
  const fs::path svg = stem.string() + ".svg";
  if (fs::exists(stem.string() + ".png") && fs::exists(svg) && read_file(svg) == picture.svg)
    return;
  measure::write_picture(picture.svg, stem);
}

// Every processor draws some, until one has an error, which is thrown.
void write_pictures(const std::vector<PictureFile>& pictures, const fs::path& folder) {
  std::atomic<size_t> next = 0;
  const auto draw = [&] {
    try {
      for (size_t i = next++; i < pictures.size(); i = next++) write_changed(pictures[i], folder);
    } catch (...) {
      next = pictures.size();
      throw;
    }
  };
  const size_t threads = std::min<size_t>(std::thread::hardware_concurrency(), pictures.size());
  std::vector<std::future<void>> drawn;
  for (size_t i = 0; i < std::max<size_t>(threads, 1); ++i)
    drawn.push_back(std::async(std::launch::async, draw));
  for (std::future<void>& one : drawn) one.get();
}

}  // namespace

std::vector<std::vector<PictureFile>> draw_pictures(const std::vector<Result>& results) {
  SeriesColors colors;
  std::vector<std::vector<PictureFile>> drawn;
  for (const Result& result : results) {
    drawn.emplace_back();
    for (NamedPicture picture : result.pictures) {
      if (auto* plot = std::get_if<measure::Plot>(&picture.picture)) {
        colors.paint(*plot);
        choose_scale(*plot);
      }
      set_footnote(picture, str(result.made.command, "; ", origin_of(result.made)));
      drawn.back().push_back({stem_of(result, picture.name), caption_of(picture), to_svg(picture)});
    }
  }
  return drawn;
}

void write_record(const RunRecord& record, const fs::path& directory) {
  write_file(directory / "report.json", Json(record).dump(1) + "\n");
}

RunRecord read_record(const fs::path& directory) {
  const fs::path path = directory / "report.json";
  if (!fs::exists(path)) return {};
  try {
    return Json::parse(read_file(path)).get<RunRecord>();
  } catch (const Json::exception& error) {
    throw UserError(
        str("[report] expected the record of a report in ", path.string(), ": ", error.what()));
  }
}

void write_document(const Document& document, const fs::path& directory) {
  make_directories(directory / "tables");
  make_directories(directory / "pictures");
  for (const DocumentTable& table : document.tables) write_table(table, directory / "tables");
  write_pictures(document.pictures, directory / "pictures");
  write_file(directory / "report.md", document.markdown);
  write_file(directory / "report.html", document.html);
}

}  // namespace flashstep::tools
