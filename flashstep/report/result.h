// What a report measures, and what one measurement left behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/bench/picture_json.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/table.h"

namespace flashstep::tools {

// What a report measures: its sections, and the commands of the program that fill them.
//
// A section's measurements are command lines of `flashstep`, run as child processes with `--out
// FOLDER` behind them; what they write there (tools::save) is the result. A new command joins the
// report by a row in sections.json and its measurements in a handout
// (report/handouts/*.json).

struct Needs {
  int gpus = 0;
  uint64_t memory_bytes = 0;  // of the machine
  bool python = false;        // scripts/python with torch
};

struct Measurement {
  std::string name;                    // of files and of --only: "ddp_2025"
  std::vector<std::string> arguments;  // of flashstep: {"bench", "ddp", "--preset", "2025"}
  double seconds = 10;                 // expected, for the time that is left
  Needs needs = {};
  // Commands that make its inputs. "@DATA" in a word, here and in `arguments`, is the report's
  // folder for such files; a command whose file (its last word) is there already is left out.
  std::vector<std::vector<std::string>> before = {};
  bool stem_out = false;     // its --out is the stem of one table's files, not a folder
  std::string section = {};  // plan_of() says which
};

// What a preset asks of a section on this machine, and what it asks in vain.
struct LeftOut {
  std::string what;  // "ddp_2025"
  std::string why;   // "needs 2 GPUs, this machine has none"
  std::string section = {};
};
struct Plan {
  std::vector<Measurement> measurements;
  std::vector<LeftOut> left_out;
};

struct Section {
  std::string name;   // of --only
  std::string title;  // its heading
  std::string about;  // what stands below it
};

const std::vector<Section>& sections();
std::vector<std::string> section_names();
std::vector<std::string> report_presets();  // "quick", "2024", "2025", "2026", "all"

// Those of a section; nothing twice where `preset` is all. UserError for an unknown preset.
Plan plan_of(const Section& section, const std::string& preset, const measure::Machine& machine);

// Whether a preset has, for some machine, a measurement of the section whose name begins so.
bool preset_measures(const std::string& preset, const std::string& section,
                     const std::string& name);

// Why a machine cannot run it; empty if it can.
std::string why_not(const Needs& needs, const measure::Machine& machine);

// Which code measured: a result is not taken for that of other code. Texts and layout of the
// report (report/) are no part of it: they may change without measuring anew.
struct MeasuredVersion {
  std::string commit;   // "1a2b3c4d5e", with a + where files had been changed; empty without git
  std::string sources;  // hash of all sources of the library but tests and report/
};

// Of this program, taken when it was built (cmake/FlashstepMeasuredVersion.cmake).
MeasuredVersion measured_version();

std::string describe(const MeasuredVersion& version);  // "commit 1a2b3c4d5e, sources 0123456789"

// Where the figures of a result come from: stands below each of them.
struct Provenance {
  std::string command;      // "flashstep bench ddp --preset 2025"
  std::string machine;      // measure::one_line
  std::string driver;       // of the GPU; empty without
  std::string version;      // describe(MeasuredVersion)
  std::string clocks;       // while it ran; empty where nobody says
  std::string measured_at;  // "2026-11-21 03:15:04 UTC": sorts as text
  double seconds = 0;
};

struct Result {
  std::string measurement, section;  // their names
  std::string key;                   // key_of
  Provenance made;
  std::vector<NamedTable> tables;  // "ddp", "ddp_runs"
  std::vector<NamedPicture> pictures;
  std::vector<std::string> files;  // what else it wrote, relative to the report's directory
  std::string failure;             // why there is nothing; it is measured again next time
};

// Changes with the measurement's inputs, the measured code, the processor, the GPUs and their
// driver: 32 hexadecimal digits.
std::string key_of(const Measurement& measurement, const MeasuredVersion& version,
                   const measure::Machine& machine);

std::string to_json(const Result& result);
// UserError that names `source` for what is damaged or of another version of the format.
Result result_from_json(const std::string& json, const std::string& source);

// Of a folder and of those in it, relative to it; sorted, its own first.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder);

// DIRECTORY/results/MEASUREMENT-KEY.json
std::filesystem::path result_file(const std::filesystem::path& directory,
                                  const std::string& measurement, const std::string& key);

struct StoredResults {
  std::vector<Result> results;          // in the order of their files' names
  std::vector<std::string> complaints;  // a sentence for each file that is no result
};
// All of DIRECTORY/results. Files that cannot be read are left as they are.
StoredResults read_results(const std::filesystem::path& directory);

// Of each measurement one result: the one that has its key in `keys`, else the latest without
// failure, else the latest. In the order of `results`.
std::vector<Result> current(std::vector<Result> results, const std::vector<std::string>& keys);

// The tables and pictures that a command wrote into `folder`, and the names of its other files; in
// the order of the files' names. A picture that has no data beside it is taken as it is drawn.
Result collect(const std::filesystem::path& folder);

}  // namespace flashstep::tools
