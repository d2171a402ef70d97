#include "flashstep/data/manifest.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "flashstep/base/hash.h"
#include "flashstep/base/json_depth.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

int64_t modified_ns(fs::file_time_type time) {
  const auto since_1970 = std::chrono::file_clock::to_sys(time).time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
}

// Size and time, by which holds() knows a file, too. (Not its inode's number: some file systems
// give a file another one when they have forgotten it.)
ManifestFile state_of(const fs::path& path) {
  ManifestFile file;
  file.path = path.string();
  std::error_code error;  // a missing file has a size and a time of its own
  file.modified_ns = modified_ns(fs::last_write_time(path, error));
  file.size_bytes = fs::file_size(path, error);
  return file;
}

// Time first: to the next run a change while the file is being hashed is one.
ManifestFile describe(const fs::path& path) {
  ManifestFile file = state_of(path);
  file.hash = hash_file(path);
  return file;
}

std::vector<ManifestFile> unfinished(const std::vector<fs::path>& outputs) {
  std::vector<ManifestFile> files;
  for (const fs::path& output : outputs) files.emplace_back().path = output.string();
  return files;
}

Json to_json(const std::vector<ManifestFile>& files) {
  Json list = Json::array();
  for (const ManifestFile& file : files) {
    list.push_back({{"path", printable_utf8(file.path)},
                    {"size_bytes", file.size_bytes},
                    {"modified_ns", file.modified_ns},
                    {"xxh3_128", file.hash}});
  }
  return list;
}

// `json[key]` of type T; `has_type` is the library's question for it.
template <typename T>
T member(const Json& json, const char* key, bool (Json::*has_type)() const noexcept,
         const std::string& name) {
  const auto found = json.find(key);
  require(found != json.end() && ((*found).*has_type)(), "[", name,
          "] expected a manifest, got none or a wrong value for \"", key, "\"");
  return found->get<T>();
}

std::vector<ManifestFile> parse_files(const Json& json, const char* key, const std::string& name) {
  const auto list = member<Json>(json, key, &Json::is_array, name);
  std::vector<ManifestFile> files;
  for (const Json& entry : list) {
    require(entry.is_object(), "[", name, "] expected files as objects in \"", key, "\"");
    files.push_back({member<std::string>(entry, "path", &Json::is_string, name),
                     member<uint64_t>(entry, "size_bytes", &Json::is_number_unsigned, name),
                     member<int64_t>(entry, "modified_ns", &Json::is_number_integer, name),
                     member<std::string>(entry, "xxh3_128", &Json::is_string, name)});
  }
  return files;
}

// Paths may hold any bytes: what is no UTF-8 is replaced rather than refused.
void write_as_json(const fs::path& path, const Stage& stage,
                   const std::vector<ManifestFile>& inputs,
                   const std::vector<ManifestFile>& outputs) {
  const Json json = {{"stage", stage.name},
                     {"settings", stage.settings},
                     {"inputs", to_json(inputs)},
                     {"outputs", to_json(outputs)}};
  write_file(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// Whether the stage's manifest speaks of a file of this name. The directory may have been moved.
bool speaks_of(const std::optional<Manifest>& manifest, const Stage& stage,
               const fs::path& output) {
  if (!manifest || manifest->stage != stage.name) return false;
  const auto is_it = [&](const ManifestFile& file) {
    return fs::path(file.path).filename() == output.filename();
  };
  return std::any_of(manifest->outputs.begin(), manifest->outputs.end(), is_it);
}

// Nothing where there is no manifest, or something else.
std::optional<Manifest> read_manifest(const fs::path& path) {
  try {
    return parse_manifest(read_file(path), path.string());
  } catch (const UserError&) {
    return std::nullopt;
  }
}

void require_same_inputs(const fs::path& path, const Stage& stage, const StageBegun& begun) {
  for (const ManifestFile& before : begun.inputs) {
    const ManifestFile now = state_of(before.path);
    if (now.size_bytes == before.size_bytes && now.modified_ns == before.modified_ns) continue;
    write_as_json(path, stage, {}, unfinished(stage.outputs));
    throw UserError(str("[data] expected ", before.path, " to stay as it is while it is read, ",
                        "got another file or a change: run the same command again when nobody ",
                        "writes to it"));
  }
}

using Complaint = std::optional<std::string>;

Complaint compare_settings(const Manifest& manifest, const Stage& stage) {
  for (const auto& [key, value] : stage.settings) {
    const auto before = manifest.settings.find(key);
    if (before == manifest.settings.end()) return str(key, " is ", value, " and was not set");
    if (before->second != value) return str(key, " is ", value, " and was ", before->second);
  }
  for (const auto& [key, value] : manifest.settings) {
    if (!stage.settings.contains(key)) return str(key, " is not set and was ", value);
  }
  return std::nullopt;
}

Complaint compare_file(const ManifestFile& before, const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) return str(path.string(), " cannot be read: ", error.message());
  if (size != before.size_bytes) {
    return str(path.string(), " has ", with_commas(static_cast<int64_t>(size)), " bytes and had ",
               with_commas(static_cast<int64_t>(before.size_bytes)));
  }
  const auto modified = fs::last_write_time(path, error);
  if (!error && modified_ns(modified) == before.modified_ns) return std::nullopt;
  try {
    if (hash_file(path) == before.hash) return std::nullopt;
  } catch (const std::exception& unreadable) {
    return unreadable.what();
  }
  return str(path.string(), " has changed");
}

Complaint compare_files(const char* what, const std::vector<ManifestFile>& before,
                        const std::vector<fs::path>& now) {
  if (before.size() != now.size()) {
    return str("there are ", now.size(), " ", what, " and were ", before.size());
  }
  for (size_t i = 0; i < now.size(); ++i) {
    if (Complaint complaint = compare_file(before[i], now[i])) return complaint;
  }
  return std::nullopt;
}

// NAME.changed, or the first NAME.changed-N that is free.
fs::path free_name(const fs::path& directory, const fs::path& output) {
  const fs::path first = directory / (output.filename().string() + ".changed");
  fs::path name = first;
  std::error_code error;
  for (int number = 2; fs::exists(fs::symlink_status(name, error)); ++number) {
    name = str(first.string(), "-", number);
  }
  return name;
}

std::string keep_changed(const Manifest& manifest, const fs::path& path, const Stage& stage) {
  std::vector<std::string> kept;
  for (const fs::path& output : stage.outputs) {
    for (const ManifestFile& before : manifest.outputs) {
      const bool is_finished =
          fs::path(before.path).filename() == output.filename() && !before.hash.empty();
      std::error_code error;
      if (!is_finished || !fs::is_regular_file(output, error) || !compare_file(before, output)) {
        continue;
      }
      const fs::path name = free_name(path.parent_path(), output);
      fs::rename(output, name, error);
      if (error) throw MachineError(str("cannot rename ", output, ": ", error.message()));
      kept.push_back(name.string());
    }
  }
  if (kept.empty()) return "";
  return str("[data] changed since it was made here, and kept as ", join(kept),
             ": it is made anew");
}

}  // namespace

fs::path manifest_path(const fs::path& output) {
  fs::path path = output;
  return path += ".manifest.json";
}

std::string setting_of_output(const fs::path& output, const std::string& setting) {
  const std::optional<Manifest> manifest = read_manifest(manifest_path(output));
  if (!manifest || manifest->outputs.size() != 1) return "";
  const auto found = manifest->settings.find(setting);
  if (found == manifest->settings.end() || compare_file(manifest->outputs[0], output)) return "";
  return found->second;
}

void require_own_outputs(const fs::path& path, const Stage& stage) {
  const std::optional<Manifest> manifest = read_manifest(path);
  for (const fs::path& output : stage.outputs) {
    std::error_code error;  // a link that leads nowhere is there, too
    const bool is_there = fs::exists(fs::symlink_status(output, error));
    require(!is_there || speaks_of(manifest, stage, output), "[data] expected ", output.string(),
            " to be missing, or made here before, as ", path.string(),
            " would say; got a file that somebody else made: move it away, or set "
            "text.directory to a place for what is made");
  }
}

StageBegun begin_stage(const fs::path& path, const Stage& stage) {
  require_own_outputs(path, stage);
  const std::optional<Manifest> manifest = read_manifest(path);
  StageBegun begun;
  if (manifest) begun.kept = keep_changed(*manifest, path, stage);
  const bool all_known =
      std::all_of(stage.outputs.begin(), stage.outputs.end(),
                  [&](const fs::path& output) { return speaks_of(manifest, stage, output); });
  if (!all_known) write_as_json(path, stage, {}, unfinished(stage.outputs));
  for (const fs::path& input : stage.inputs) begun.inputs.push_back(state_of(input));
  return begun;
}

void write_manifest(const fs::path& path, const Stage& stage, const StageBegun& begun) {
  require_same_inputs(path, stage, begun);
  std::vector<ManifestFile> inputs, outputs;
  for (const fs::path& input : stage.inputs) inputs.push_back(describe(input));
  for (const fs::path& output : stage.outputs) outputs.push_back(describe(output));
  require_same_inputs(path, stage, begun);  // what was hashed is what was read
  write_as_json(path, stage, inputs, outputs);
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  require(json_depth(text) <= kMaxJsonDepth, "[", name, "] expected a manifest, got JSON nested ",
          "more than ", kMaxJsonDepth, " deep");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  require(json.is_object(), "[", name, "] expected a manifest, got no JSON object");
  Manifest manifest;
  manifest.stage = member<std::string>(json, "stage", &Json::is_string, name);
  const Json settings = member<Json>(json, "settings", &Json::is_object, name);
  for (const auto& [key, value] : settings.items()) {
    require(value.is_string(), "[", name, "] expected text for the setting \"", key, "\"");
    manifest.settings[key] = value.get<std::string>();
  }
  manifest.inputs = parse_files(json, "inputs", name);
  manifest.outputs = parse_files(json, "outputs", name);
  return manifest;
}

Verdict holds(const fs::path& path, const Stage& stage) {
  Manifest manifest;
  std::error_code error;
  if (!fs::exists(path, error)) return {false, str("there is no ", path.string())};
  try {
    manifest = parse_manifest(read_file(path), path.string());
  } catch (const UserError& malformed) {
    return {false, malformed.what()};
  }
  Complaint complaint;
  if (manifest.stage != stage.name) {
    complaint = str(path.string(), " belongs to the stage ", manifest.stage, ", not ", stage.name);
  }
  for (const ManifestFile& output : manifest.outputs) {
    if (!complaint && output.hash.empty()) complaint = output.path + " was not finished";
  }
  if (complaint) return {false, *complaint};
  complaint = compare_settings(manifest, stage);
  if (!complaint) complaint = compare_files("inputs", manifest.inputs, stage.inputs);
  if (complaint) return {false, *complaint, /*is_of_others=*/true};
  complaint = compare_files("outputs", manifest.outputs, stage.outputs);
  return complaint ? Verdict{false, *complaint} : Verdict{true, ""};
}

}  // namespace flashstep
