// A report as a document: a first page of findings, then by section what was asked and answered,
// with all measurements folded away behind it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "flashstep/measure/table.h"
#include "flashstep/report/page.h"
#include "flashstep/report/question.h"
#include "flashstep/report/result.h"

namespace flashstep::tools {

struct DocumentTable {
  std::string file;  // stem below tables/: "ddp_2025", "ddp_2025_runs"
  measure::Table table;
  Provenance made;
};

struct ResultFiles {
  std::vector<DocumentTable> tables;
  std::vector<PictureFile> pictures;
};
// Of each result. One name has one colour in all pictures, and each says where it comes from.
std::vector<ResultFiles> make_files(const std::vector<Result>& results);

// tables/*.csv .md .json and pictures/*.svg .png. Tables say where their numbers come from in a
// last note, CSVs in a first line that begins with "#" (pandas: comment="#"). MachineError when
// that fails.
void write_files(const std::vector<ResultFiles>& files, const std::filesystem::path& directory);

struct Document {
  std::string html, markdown;  // the HTML needs no other file
  size_t measured = 0;         // answers that are computed
  size_t asked = 0;            // all of them
};

// What the report's directory knows of the run beside its results: report.json.
struct RunRecord {
  std::string preset = "quick";
  std::vector<std::string> only;  // sections; empty: all
  std::vector<LeftOut> left_out;
};
void write_record(const RunRecord& record, const std::filesystem::path& directory);
// Defaults where there is none; UserError for a damaged one.
RunRecord read_record(const std::filesystem::path& directory);
// What its preset asks of the machines of these results beyond them, if it does not know.
void add_left_out(const std::vector<Result>& results, RunRecord& record);

// Sections without result or answer are not in it; questions of sections that `record.only` leaves
// out are not asked.
Document make_document(const std::vector<Result>& results, const std::vector<ResultFiles>& files,
                       const RunRecord& record, const std::vector<std::string>& complaints);

// The machine and moment of a result, for files that stand alone with its command before it.
std::string origin_of(const Provenance& made);
// "ddp" of measurement "ddp_2025" is "ddp_2025"; "ddp_runs" is "ddp_2025_runs".
std::string stem_of(const Result& result, const std::string& name);

}  // namespace flashstep::tools
