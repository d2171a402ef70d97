// What a report measures: its sections, and the commands of the program that fill them.
//
// A section's measurements are command lines of `flashstep`, run as child processes with `--out
// FOLDER` behind them; what they write there (report::save) is the result. A new command joins the
// report by a row in the table of sections (sections.cc) and its measurements in a handout
// (report/handouts/*.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/measure/machine.h"

namespace flashstep::report {

struct Needs {
  int gpus = 0;
  uint64_t memory_bytes = 0;      // of the machine
  uint64_t gpu_memory_bytes = 0;  // of its first GPU
  bool python = false;            // scripts/python with torch
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
  const char* name;   // of --only
  const char* title;  // its heading
  const char* about;  // what stands below it
};

const std::vector<Section>& sections();
std::vector<std::string> report_presets();  // "quick", "2024", "2025", "2026", "all"

// Those of a section; nothing twice where `preset` is all. UserError for an unknown preset.
Plan plan_of(const Section& section, const std::string& preset, const measure::Machine& machine);

// Why a machine cannot run it; empty if it can.
std::string why_not(const Needs& needs, const measure::Machine& machine);

}  // namespace flashstep::report
