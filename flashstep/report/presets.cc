// What each preset measures: the measurements of the handouts (report/handouts/*.json), as far as
// a machine can make them.
//
//   "presets": {"2025": {"@BATCH": "4"}}    its presets, and what words stand for in each; @PRESET
//    stands for its name
//   {"section": "step", "name": "step_@PRESET", "line": "bench step ...", "seconds": 24}    a
//    measurement: a command line of flashstep and how long it takes
//   "presets"    that have it; without it all of the handout's
//   "gpus_from", "gpus_below"    of machines with so many GPUs only
//   "gpus", "memory_gib", "python"    what it needs; where that is missing it is left out
//   "before"    command lines that make its inputs; "stem_out": --out is a stem, not a folder
//   {"left_out": "larger sizes", "why": "..."}    what the machines of gpus_from and gpus_below
//    leave; without "why" those that lack what it needs, and "more" behind that
#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/command.h"
#include "flashstep/report/question.h"
#include "flashstep/report/texts.h"

namespace flashstep::tools {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<Json>& handouts() {
  static const std::vector<Json> all = [] {
    std::vector<Json> parsed;
    for (const auto& [name, text] : handout_texts()) parsed.push_back(Json::parse(text));
    return parsed;
  }();
  return all;
}

// Of all handouts, preset by preset: each with its "preset", and with what its words stand for.
const std::vector<Json>& preset_entries() {
  static const std::vector<Json> all = [] {
    std::vector<Json> entries;
    for (const Json& handout : handouts()) {
      for (const auto& [preset, words] : handout.at("presets").items()) {
        std::string said = handout.at("measurements").dump();
        said = std::regex_replace(said, std::regex("@PRESET\\b"), preset);
        for (const auto& [word, meaning] : words.items())
          said = std::regex_replace(said, std::regex(word + "\\b"), meaning.get<std::string>());
        for (Json& entry : Json::parse(said)) {
          if (!is_wanted(entry.value("presets", std::vector<std::string>()), preset)) continue;
          entry["preset"] = preset;
          entries.push_back(std::move(entry));
        }
      }
    }
    return entries;
  }();
  return all;
}

// A command line at its blanks; '' is an empty word.
std::vector<std::string> words_at_blanks(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word == "''" ? "" : word);
  return words;
}

Measurement measurement_from(const Json& entry) {
  Measurement measurement{.name = entry.value("name", ""),
                          .arguments = words_at_blanks(entry.value("line", "")),
                          .seconds = entry.value("seconds", 0.0),
                          .needs = {.gpus = entry.value("gpus", 0),
                                    .memory_bytes = entry.value("memory_gib", uint64_t{0}) << 30,
                                    .python = entry.value("python", false)},
                          .stem_out = entry.value("stem_out", false),
                          .section = entry.at("section")};
  for (const auto& line : entry.value("before", std::vector<std::string>()))
    measurement.before.push_back(words_at_blanks(line));
  return measurement;
}

bool is_asked(const Json& entry, const std::string& preset, const std::string& section) {
  const std::string& own = entry.at("preset").get_ref<const std::string&>();
  return (preset == "all" ? own != "quick" : own == preset) && entry.at("section") == section;
}

// Nothing twice: presets have measurements in common.
template <typename T>
void add_once(std::vector<T>& all, const T& one, std::string T::*name) {
  if (std::ranges::count(all, one.*name, name) == 0) all.push_back(one);
}

// Why peers in Python cannot run; empty if they can.
std::string python_failure() {
  if (!std::filesystem::exists("scripts/python"))
    return "needs Python's torch, and there is no scripts/python in this directory";
  static const bool has_torch = [] {  // asked once: a report plans many measurements
    CommandOptions find;
    find.command = {
        "scripts/python", "-c",
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"};
    return run_command(find).failure.empty();
  }();
  return has_torch ? ""
                   : "needs Python's torch, which scripts/python does not find "
                     "(scripts/bootstrap --python installs it)";
}

}  // namespace

std::vector<std::string> report_presets() {
  std::set<std::string> years;
  for (const Json& handout : handouts()) {
    for (const auto& [preset, words] : handout.at("presets").items()) years.insert(preset);
  }
  years.erase("quick");
  std::vector<std::string> presets = {"quick"};
  presets.insert(presets.end(), years.begin(), years.end());
  presets.emplace_back("all");
  return presets;
}

Plan plan_of(const Section& section, const std::string& preset, const measure::Machine& machine) {
  const auto presets = report_presets();
  require(contains(presets, preset), "[report] expected a preset among ", join(presets), ", got \"",
          preset, "\"");
  Plan plan;
  const size_t gpus = machine.gpus.size();
  for (const Json& entry : preset_entries()) {
    if (!is_asked(entry, preset, section.name) || gpus < entry.value("gpus_from", size_t{0}) ||
        gpus >= entry.value("gpus_below", SIZE_MAX)) {
      continue;
    }
    const Measurement measurement = measurement_from(entry);
    const std::string lack = why_not(measurement.needs, machine);
    const std::string why = entry.value("why", lack),
                      what = entry.value("left_out", measurement.name);
    if (!entry.contains("left_out") && lack.empty())
      add_once(plan.measurements, measurement, &Measurement::name);
    if (!why.empty())
      add_once(plan.left_out, {what, why + entry.value("more", ""), section.name}, &LeftOut::what);
  }
  return plan;
}

bool preset_measures(const std::string& preset, const std::string& section,
                     const std::string& name) {
  return std::ranges::any_of(preset_entries(), [&](const Json& entry) {
    return is_asked(entry, preset, section) && entry.contains("name") &&
           entry.at("name").get_ref<const std::string&>().starts_with(name);
  });
}

const std::vector<Section>& sections() {
  static const std::vector<Section> all = [] {
    std::vector<Section> read;
    for (const auto& row : nlohmann::json::parse(section_texts()))
      read.push_back({row.at(0), row.at(1), row.at(2)});
    return read;
  }();
  return all;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Section& section : sections()) names.push_back(section.name);
  return names;
}

std::string why_not(const Needs& needs, const measure::Machine& machine) {
  const auto gpus = static_cast<int>(machine.gpus.size());
  if (needs.gpus > gpus) {
    const std::string wanted = needs.gpus == 1 ? "a GPU" : str(needs.gpus, " GPUs");
    const std::string there = gpus == 0 ? "this machine has none" : str("this machine has ", gpus);
    return str("needs ", wanted, ", ",
               machine.unused_gpu ? "and a program built with CUDA (cmake --preset cuda)" : there);
  }
  if (needs.memory_bytes > machine.memory_bytes) {
    return str("needs ", human_bytes(needs.memory_bytes), " of memory, this machine has ",
               human_bytes(machine.memory_bytes));
  }
  return needs.python ? python_failure() : "";
}

}  // namespace flashstep::tools
