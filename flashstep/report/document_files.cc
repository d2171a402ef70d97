// The files of a document: the report itself, its tables and pictures, and the record of the run.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <map>
#include <regex>
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
    plot.y.scale = measure::Scale::kLog;
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

// Judgements of earlier programs by targets of their own: "(bar 8 %: kept)".
std::string without_bars(const std::string& note) {
  static const std::regex bar(R"( ?\((bar|promised|limit)[^():]*: [A-Za-z]+\)|; bars kept)");
  return std::regex_replace(note, bar, "");
}

// For a picture, which is often looked at alone: what, on what, of which sources, and when. All
// that is known stands with the tables.
std::string short_origin(const Provenance& made) {
  const auto first = [](const std::string& text, const char* end) {
    return text.substr(0, text.find(end));
  };
  return str(made.command, "; ", first(made.machine, "; "), "; ", first(made.version, ", "), "; ",
             first(made.measured_at, " "));
}

}  // namespace

std::vector<ResultFiles> make_files(const std::vector<Result>& results) {
  SeriesColors colors;
  std::vector<ResultFiles> files;
  for (const Result& result : results) {
    auto& [tables, pictures] = files.emplace_back();
    for (const NamedTable& named : result.tables) {
      tables.push_back({stem_of(result, named.name), named.table, result.made});
      for (std::string& note : tables.back().table.notes) note = without_bars(note);
    }
    for (NamedPicture picture : result.pictures) {
      if (auto* plot = std::get_if<measure::Plot>(&picture.picture)) {
        colors.paint(*plot);
        choose_scale(*plot);
      }
      set_footnote(picture, short_origin(result.made));
      pictures.push_back({stem_of(result, picture.name), caption_of(picture), to_svg(picture)});
    }
  }
  return files;
}

void write_files(const std::vector<ResultFiles>& files, const fs::path& directory) {
  make_directories(directory / "tables");
  make_directories(directory / "pictures");
  std::vector<std::function<void()>> writes;
  for (const auto& [tables, pictures] : files) {
    for (const PictureFile& picture : pictures)
      writes.push_back([&] { write_changed(picture, directory / "pictures"); });
    for (const DocumentTable& table : tables)
      writes.push_back([&] { write_table(table, directory / "tables"); });
  }

  // Every processor takes the next; the first error is thrown when all have come to an end.
  std::atomic<size_t> next = 0;
  const auto write = [&] {
    for (size_t i = next++; i < writes.size(); i = next++) writes[i]();
  };
  std::vector<std::future<void>> written;
  for (size_t i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); ++i)
    written.push_back(std::async(std::launch::async, write));
  for (std::future<void>& one : written) one.get();
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

constexpr const char* kNeedsPython = "needs Python's torch";  // as plan_of() says it

void add_left_out(const std::vector<Result>& results, RunRecord& record) {
  const auto gpus_of = [](const Result& result) {
    std::istringstream machine(result.made.machine);  // "2 x NVIDIA H200 with 140 GiB; ..."
    size_t gpus = 0;
    std::string x;
    return machine >> gpus >> x && x == "x" ? gpus : 0;
  };
  size_t most = 0;
  for (const Result& result : results) most = std::max(most, gpus_of(result));
  for (const Section& section : sections()) {
    if (!is_wanted(record.only, section.name)) continue;
    std::set<std::string> known;
    size_t gpus = 0;
    for (const LeftOut& out : record.left_out) known.insert(out.what);
    for (const Result& result : results) {
      if (result.section == section.name) gpus = std::max(gpus, gpus_of(result));
      known.insert(result.measurement);
    }
    measure::Machine machine;
    machine.memory_bytes = UINT64_MAX;
    machine.gpus.resize(gpus > 0 ? gpus : most);
    Plan plan = plan_of(section, record.preset, machine);
    for (const Measurement& one : plan.measurements)
      plan.left_out.push_back(
          {one.name, one.needs.python ? kNeedsPython : "was not run", section.name});
    for (LeftOut& out : plan.left_out) {
      if (out.why.starts_with(kNeedsPython)) {  // whether or not who draws has it
        if (contains(out.what, " ")) continue;  // a part of what was measured
        out.why = kNeedsPython;
      }
      if (known.insert(out.what).second) record.left_out.push_back(std::move(out));
    }
  }
}

}  // namespace flashstep::tools
