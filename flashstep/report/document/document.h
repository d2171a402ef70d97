// A report as a document: sections of results and answers, before it is written as HTML, Markdown
// and files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "flashstep/report/document/question.h"
#include "flashstep/report/document/result.h"

namespace flashstep::report {

struct DocumentTable {
  std::string file;  // stem below tables/, and an anchor: "ddp_2025_ddp"
  measure::Table table;
  bool detail = false;  // every run: folded away where a reader can unfold it
};
struct DocumentPicture {
  std::string file;  // stem below pictures/
  std::string title;
  std::string svg;
};

struct DocumentResult {
  std::string measurement;
  Provenance made;
  std::vector<DocumentTable> tables;
  std::vector<DocumentPicture> pictures;
  std::vector<std::string> files;  // relative to the report's directory
  std::string trouble;             // what went wrong; empty: nothing
};

struct DocumentSection {
  std::string name, title, about;
  std::vector<DocumentResult> results;
  std::vector<LeftOut> left_out;
  std::vector<Answer> answers;
};

struct Document {
  std::string title, subtitle;
  std::vector<std::string> remarks;  // damaged files, results of several machines
  std::vector<DocumentSection> sections;

  size_t measured() const;  // answers that are computed
  size_t asked() const;     // all of them
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

// Sections without result, answer or anything left out are not in it. Answers of sections that
// `record.only` leaves out are neither.
Document make_document(const std::vector<Result>& results, const RunRecord& record,
                       const std::vector<std::string>& complaints);

// report_html.cc: one file that needs no other and no network: style, script and pictures in it.
std::string to_html(const Document& document);
// report_markdown.cc: with the pictures below pictures/.
std::string to_markdown(const Document& document);

// report.html, report.md, tables/*.csv .md .tex .json and pictures/*.svg .png. Tables say where
// their numbers come from in a last note, CSVs in a first line that begins with "#" (pandas:
// comment="#"). MachineError when that fails.
void write_document(const Document& document, const std::filesystem::path& directory);

// The command, machine and moment of a figure, in one line.
std::string describe(const Provenance& made);

}  // namespace flashstep::report
