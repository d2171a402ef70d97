// Manifests: a small JSON file beside what a stage wrote, by which a later run sees whether the
// stage can be skipped. It holds the stage's settings and, of every file read and written, the
// size, the time of change and the XXH3-128 hash of the content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep {

// A stage of the preparation, as it is to be done now.
struct Stage {
  std::string name;                             // "tokens"
  std::map<std::string, std::string> settings;  // "vocab_size" -> "4096"
  std::vector<std::filesystem::path> inputs, outputs;
};

// One file as it was when the manifest was written.
struct ManifestFile {
  std::string path;  // as the stage named it: for messages, contents are what counts
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;  // since 1970
  std::string hash;         // base/hash.h; empty until the file is finished
};

struct Manifest {
  std::string stage;
  std::map<std::string, std::string> settings;
  std::vector<ManifestFile> inputs, outputs;
};

// output + ".manifest.json": where the manifest of a stage with this main output belongs.
std::filesystem::path manifest_path(const std::filesystem::path& output);

// UserError if an output of `stage` is there that the manifest at `path` does not speak of: then
// somebody else made it, and it is not to be replaced.
void require_own_outputs(const std::filesystem::path& path, const Stage& stage);

struct StageBegun {
  std::string kept;                  // what was renamed, a sentence; empty: nothing
  std::vector<ManifestFile> inputs;  // as they were then, without hashes
};

// Before the stage's inputs are read and its outputs made: require_own_outputs(), and a manifest
// that names them if there is none yet. That one does not hold, but by it what a killed process
// leaves is known as ours. A finished output that somebody has changed since is not lost: it is
// renamed to NAME.changed beside the manifest.
StageBegun begin_stage(const std::filesystem::path& path, const Stage& stage);

// Hashes the stage's files and writes the manifest. UserError if one cannot be read; and if an
// input has another size or time of change than when the stage was begun: nobody knows then what
// the outputs were made of, and the manifest says that they were not finished.
void write_manifest(const std::filesystem::path& path, const Stage& stage,
                    const StageBegun& begun = {});

struct Verdict {
  bool holds = false;
  std::string why;            // what disagrees, a sentence without a full stop; empty when it holds
  bool is_of_others = false;  // that are settings or inputs: made anew, outputs may be others
};

// Whether the manifest at `path` says that `stage` has been done: same settings, the inputs and
// outputs in the same order with the contents they had. Quick: a file is hashed only when its size
// is right and its time of change is not. A missing or malformed manifest does not hold.
Verdict holds(const std::filesystem::path& path, const Stage& stage);

// A setting of the stage that made `output`, as the manifest beside it has it; empty where there is
// none, or where `output` is no longer what it speaks of.
std::string setting_of_output(const std::filesystem::path& output, const std::string& setting);

// JSON text to a manifest; UserError, beginning with [name], for anything else.
Manifest parse_manifest(std::string_view json, const std::string& name);

}  // namespace flashstep
