// What one measurement of a report left behind: a JSON file that holds all that its tables and
// pictures are made of, so that a report is drawn anew without measuring, on any machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/measure/machine.h"
#include "flashstep/measure/table.h"
#include "flashstep/report/document/measured_version.h"
#include "flashstep/report/document/measurement.h"
#include "flashstep/report/picture_json.h"

namespace flashstep::report {

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
  std::vector<StoredPicture> pictures;
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

}  // namespace flashstep::report
