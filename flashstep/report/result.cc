#include "flashstep/report/result.h"

#include <algorithm>
#include <future>

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

// Its texts by their keys; beside them stand its seconds.
constexpr std::pair<const char*, std::string Provenance::*> kMade[] = {
    {"command", &Provenance::command}, {"machine", &Provenance::machine},
    {"driver", &Provenance::driver},   {"version", &Provenance::version},
    {"clocks", &Provenance::clocks},   {"measured_at", &Provenance::measured_at}};

Result read_result(const OrderedJson& json, const std::string& source) {
  const int format = json.at("format").get<int>();
  require(format == kFormat, "it has format ", format, ", this program reads ", kFormat);
  Result result;
  result.measurement = json.at("measurement").get<std::string>();
  result.section = json.at("section").get<std::string>();
  result.key = json.at("key").get<std::string>();
  const OrderedJson& made = json.at("made");
  for (const auto& [key, field] : kMade) result.made.*field = made.at(key).get<std::string>();
  result.made.seconds = made.at("seconds").get<double>();
  result.failure = json.at("trouble").get<std::string>();
  for (const OrderedJson& table : json.at("tables")) {
    result.tables.push_back({table.at("name"), table.at("table").get<measure::Table>()});
    for (measure::Column& column : result.tables.back().table.columns) {
      if (column.name == "contestant") column.name = "implementation";  // its old name
    }
  }
  for (const OrderedJson& picture : json.at("pictures"))
    result.pictures.push_back(picture_from_json(picture.dump(), source));
  result.files = json.at("files").get<std::vector<std::string>>();
  return result;
}

// What is a file, or what is none, in a folder and in those in it; relative to it, sorted.
std::vector<fs::path> entries_of(const fs::path& folder, bool files) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    std::error_code ignored;  // a link that leads nowhere is no file
    if (entry.is_regular_file(ignored) == files)
      found.push_back(entry.path().lexically_relative(folder));
  }
  std::ranges::sort(found, {}, [](const fs::path& path) {
    return std::pair(path.has_parent_path(), path.string());
  });
  return found;
}

// A table as measure::to_json writes it; nothing for another program's JSON.
std::optional<measure::Table> table_in(const fs::path& path) {
  if (fs::file_size(path) > kLargestTableBytes) return std::nullopt;
  const std::string text = read_file(path);
  if (!text.starts_with("{\n  \"title\":")) return std::nullopt;
  return measure::table_from_json(text, path.string());
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
                      {"made", OrderedJson::object()},
                      {"trouble", result.failure},
                      {"tables", OrderedJson::array()},
                      {"pictures", OrderedJson::array()},
                      {"files", result.files}};
  for (const auto& [key, field] : kMade) json["made"][key] = result.made.*field;
  json["made"]["seconds"] = result.made.seconds;
  for (const NamedTable& named : result.tables)
    json["tables"].push_back({{"name", named.name}, {"table", named.table}});
  for (const NamedPicture& picture : result.pictures)
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

std::vector<fs::path> files_of(const fs::path& folder) {
  return entries_of(folder, /*files=*/true);
}

fs::path result_file(const fs::path& directory, const std::string& measurement,
                     const std::string& key) {
  return directory / "results" / (measurement + "-" + key.substr(0, 12) + ".json");
}

StoredResults read_results(const fs::path& directory) {
  const fs::path folder = directory / "results";
  std::vector<std::future<Result>> read;  // megabytes of JSON, by all processors
  for (const fs::path& file : files_of(folder)) {
    if (file.extension() != ".json") continue;
    read.push_back(std::async(std::launch::async, [path = folder / file] {
      return result_from_json(read_file(path), path.string());
    }));
  }
  StoredResults stored;
  for (const fs::path& entry : entries_of(folder, /*files=*/false)) {
    const fs::path path = folder / entry;
    if (path.extension() != ".json") continue;
    stored.complaints.push_back(str("[report] expected a result in ", path.string(), ", got ",
                                    fs::is_directory(path) ? "a directory" : "no regular file",
                                    "; it is left as it is"));
  }
  for (std::future<Result>& result : read) {
    try {
      stored.results.push_back(result.get());
    } catch (const UserError& error) {
      stored.complaints.push_back(str(error.what(), "; the file is left as it is"));
    }
  }
  return stored;
}

std::vector<Result> current(std::vector<Result> results, const std::vector<std::string>& keys) {
  const auto rank = [&](const Result& result) {
    return std::tuple(result.failure.empty(), contains(keys, result.key), result.made.measured_at);
  };
  std::vector<Result> chosen;
  for (Result& result : results) {
    const auto known = std::ranges::find(chosen, result.measurement, &Result::measurement);
    if (known == chosen.end())
      chosen.push_back(std::move(result));
    else if (rank(result) > rank(*known))
      *known = std::move(result);
  }
  return chosen;
}

Result collect(const fs::path& folder) {
  // Other forms of the tables and pictures.
  const std::vector<std::string> forms = {".png", ".md", ".txt", ".csv"};
  Result result;
  for (const fs::path& file : files_of(folder)) {
    const fs::path path = folder / file;
    const std::string name = file.string(), stem = file.stem().string();
    std::optional<measure::Table> table;
    if (file.has_parent_path()) {
      result.files.push_back(name);
    } else if (name.ends_with(kPictureEnding)) {
      result.pictures.push_back(picture_from_json(read_file(path), path.string()));
      result.pictures.back().name = name.substr(0, name.size() - kPictureEnding.size());
    } else if (path.extension() == ".json" && (table = table_in(path))) {
      result.tables.push_back({stem, std::move(*table)});
    } else if (path.extension() == ".svg") {
      if (!fs::exists(folder / str(stem, kPictureEnding)))
        result.pictures.push_back({stem, read_file(path)});
    } else if (!contains(forms, path.extension().string())) {
      result.files.push_back(name);
    }
  }
  return result;
}

std::string describe(const MeasuredVersion& version) {
  return str(version.commit.empty() ? "" : "commit " + version.commit + ", ", "sources ",
             version.sources.substr(0, 10));
}

}  // namespace flashstep::tools
