#include "flashstep/report/result.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "flashstep/base/hash.h"
#include "flashstep/base/json_depth.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int kFormat = 1;  // of result files; higher when an older program could not read them
// A table is small; a trace with the same ending is not read to find that out.
constexpr uintmax_t kLargestTableBytes = 64 << 20;
constexpr std::string_view kPictureEnding = ".picture.json";

OrderedJson provenance_to_json(const Provenance& made) {
  return {{"command", made.command}, {"machine", made.machine}, {"driver", made.driver},
          {"version", made.version}, {"clocks", made.clocks},   {"measured_at", made.measured_at},
          {"seconds", made.seconds}};
}

Provenance provenance_from(const OrderedJson& json) {
  Provenance made;
  made.command = json.at("command").get<std::string>();
  made.machine = json.at("machine").get<std::string>();
  made.driver = json.at("driver").get<std::string>();
  made.version = json.at("version").get<std::string>();
  made.clocks = json.at("clocks").get<std::string>();
  made.measured_at = json.at("measured_at").get<std::string>();
  made.seconds = json.at("seconds").get<double>();
  return made;
}

Result read_result(const OrderedJson& json, const std::string& source) {
  const int format = json.at("format").get<int>();
  require(format == kFormat, "it has format ", format, ", this program reads ", kFormat);
  Result result;
  result.measurement = json.at("measurement").get<std::string>();
  result.section = json.at("section").get<std::string>();
  result.key = json.at("key").get<std::string>();
  result.made = provenance_from(json.at("made"));
  result.failure = json.at("trouble").get<std::string>();
  for (const OrderedJson& table : json.at("tables")) {
    result.tables.push_back({table.at("name").get<std::string>(),
                             measure::table_from_json(table.at("table").dump(), source)});
    for (measure::Column& column : result.tables.back().table.columns) {
      if (column.name == "contestant") column.name = "implementation";  // its old name
    }
  }
  for (const OrderedJson& picture : json.at("pictures"))
    result.pictures.push_back(picture_from_json(picture.dump(), source));
  result.files = json.at("files").get<std::vector<std::string>>();
  return result;
}

bool ends_with(const std::string& text, std::string_view ending) {
  return text.size() > ending.size() && text.ends_with(ending);
}

std::string without_ending(const std::string& text, std::string_view ending) {
  return text.substr(0, text.size() - ending.size());
}

// A table as measure::to_json writes it; nothing for another program's JSON.
std::optional<measure::Table> table_in(const fs::path& path) {
  if (fs::file_size(path) > kLargestTableBytes) return std::nullopt;
  const std::string text = read_file(path);
  if (!text.starts_with("{\n  \"title\":")) return std::nullopt;
  return measure::table_from_json(text, path.string());
}

std::vector<fs::path> sorted_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The files in folders of `folder`, relative to it.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file() && entry.path().parent_path() != folder)
      files.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Of two results of a measurement, whether `a` is to be shown.
bool better(const Result& a, const Result& b, const std::vector<std::string>& keys) {
  const auto rank = [&](const Result& result) {
    const bool asked = contains(keys, result.key);
    return std::tuple(result.failure.empty(), asked, result.made.measured_at);
  };
  return rank(a) > rank(b);
}

}  // namespace

std::string key_of(const Measurement& measurement, const MeasuredVersion& version,
                   const measure::Machine& machine) {
  OrderedJson json = {{"format", kFormat},
                      {"arguments", measurement.arguments},
                      {"before", measurement.before},
                      {"sources", version.sources},
                      {"processor", machine.processor},
                      {"cores", machine.cores},
                      {"threads", machine.threads},
                      {"driver", machine.driver_version},
                      {"cuda", machine.cuda_version},
                      {"libtorch", machine.libtorch_version}};
  json["gpus"] = OrderedJson::array();
  for (const auto& gpu : machine.gpus) json["gpus"].push_back(gpu.name);
  return hash_bytes(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

std::string to_json(const Result& result) {
  OrderedJson json = {{"format", kFormat},
                      {"measurement", result.measurement},
                      {"section", result.section},
                      {"key", result.key},
                      {"made", provenance_to_json(result.made)},
                      {"trouble", result.failure},
                      {"tables", OrderedJson::array()},
                      {"pictures", OrderedJson::array()},
                      {"files", result.files}};
  for (const NamedTable& named : result.tables) {
    json["tables"].push_back(
        {{"name", named.name}, {"table", OrderedJson::parse(measure::to_json(named.table))}});
  }
  for (const StoredPicture& picture : result.pictures)
    json["pictures"].push_back(OrderedJson::parse(to_json(picture)));
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result result_from_json(const std::string& json, const std::string& source) {
  try {
    require(json_depth(json) <= kMaxJsonDepth, "it is nested too deeply");
    return read_result(OrderedJson::parse(json), source);
  } catch (const std::exception& error) {
    throw UserError(
        str("[report] expected a result in ", source, ": ", json_complaint(error.what())));
  }
}

fs::path result_file(const fs::path& directory, const std::string& measurement,
                     const std::string& key) {
  return directory / "results" / (measurement + "-" + key.substr(0, 12) + ".json");
}

StoredResults read_results(const fs::path& directory) {
  StoredResults stored;
  for (const fs::path& path : sorted_files(directory / "results")) {
    if (path.extension() != ".json") continue;
    try {
      stored.results.push_back(result_from_json(read_file(path), path.string()));
    } catch (const UserError& error) {
      stored.complaints.push_back(str(error.what(), "; the file is left as it is"));
    }
  }
  return stored;
}

std::vector<Result> current(std::vector<Result> results, const std::vector<std::string>& keys) {
  std::vector<Result> chosen;
  std::map<std::string, size_t> places;
  for (Result& result : results) {
    const auto [place, is_new] = places.try_emplace(result.measurement, chosen.size());
    if (is_new)
      chosen.push_back(std::move(result));
    else if (better(result, chosen[place->second], keys))
      chosen[place->second] = std::move(result);
  }
  return chosen;
}

Result collect(const fs::path& folder) {
  Result result;
  for (const fs::path& path : sorted_files(folder)) {
    const std::string name = path.filename().string();
    if (ends_with(name, kPictureEnding)) {
      StoredPicture picture = picture_from_json(read_file(path), path.string());
      picture.name = without_ending(name, kPictureEnding);
      result.pictures.push_back(std::move(picture));
    } else if (path.extension() == ".json") {
      if (auto table = table_in(path))
        result.tables.push_back({path.stem().string(), std::move(*table)});
      else
        result.files.push_back(name);
    } else if (path.extension() == ".svg") {
      const fs::path data = folder / (path.stem().string() + std::string(kPictureEnding));
      if (!fs::exists(data)) result.pictures.push_back({path.stem().string(), read_file(path)});
    } else if (path.extension() == ".png" || path.extension() == ".md" ||
               path.extension() == ".txt" || path.extension() == ".csv" ||
               path.extension() == ".tex") {
      continue;  // other forms of the tables and pictures
    } else {
      result.files.push_back(name);
    }
  }
  for (std::string& file : files_below(folder)) result.files.push_back(std::move(file));
  return result;
}

std::string describe(const MeasuredVersion& version) {
  return str(version.commit.empty() ? "" : "commit " + version.commit + ", ", "sources ",
             version.sources.substr(0, 10));
}

}  // namespace flashstep::tools
