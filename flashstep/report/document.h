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

struct Document {
  std::string html, markdown;
  std::vector<DocumentTable> tables;  // each also a file
  std::vector<PictureFile> pictures;
  size_t measured = 0;  // answers that are computed
  size_t asked = 0;     // all of them
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

// Sections without result or answer are not in it; questions of sections that `record.only` leaves
// out are not asked.
Document make_document(const std::vector<Result>& results, const RunRecord& record,
                       const std::vector<std::string>& complaints);

// report.html, report.md, tables/*.csv .md .json and pictures/*.svg .png. Tables say where their
// numbers come from in a last note, CSVs in a first line that begins with "#" (pandas:
// comment="#"). MachineError when that fails.
void write_document(const Document& document, const std::filesystem::path& directory);

// The pictures of all results, in their order: one name has one colour in all of them, and each
// says where it comes from.
std::vector<std::vector<PictureFile>> draw_pictures(const std::vector<Result>& results);

// The machine and moment of a result, for files that stand alone with its command before it.
std::string origin_of(const Provenance& made);
// "ddp" of measurement "ddp_2025" is "ddp_2025"; "ddp_runs" is "ddp_2025_runs".
std::string stem_of(const Result& result, const std::string& name);

}  // namespace flashstep::tools
