// A report as a document: a first page of findings, then by section what was asked and answered,
// with all measurements folded away behind it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "flashstep/measure/table.h"
#include "flashstep/report/question.h"
#include "flashstep/report/result.h"

namespace flashstep::tools {

// A document as a tree of blocks, and its two writers.

struct Block;
using Blocks = std::vector<Block>;

// Texts may hold `code`, **bold** and [links](target).
struct HeadingBlock {
  int level;
  std::string text;
  std::string id = {};   // of the place; empty: none
  std::string tag = {};  // small print behind it
};
struct ProseBlock {
  std::string text;
  std::string style = {};  // a class of the page: "soft", "question", "missing", "remark"
};
struct ListBlock {
  std::vector<std::string> items;
  bool numbered = false;
};
struct TableBlock {
  measure::Table table;
  std::string file = {};  // stem below tables/; empty: it is no file
};
struct PictureBlock {
  std::string file, title, svg;  // file: stem below pictures/
  bool again = false;            // it has its place elsewhere
};
// Folded away on the page until someone opens it. In Markdown, where pages do not fold well, its
// tables and pictures are links to their files.
struct FoldBlock {
  std::string summary;
  std::vector<Block> blocks;
  std::string id = {};
};
// What belongs together: a section, an answer, the part of a year.
struct GroupBlock {
  std::string kind;
  std::vector<std::string> years = {};  // that it is shown for; none: for all
  std::vector<Block> blocks = {};
};
struct Block : std::variant<HeadingBlock, ProseBlock, ListBlock, TableBlock, PictureBlock,
                            FoldBlock, GroupBlock> {
  using variant::variant;
};

// blocks.cc: one page that needs no other and no network: style, script and pictures are in it.
// `navigation`: target and text of its table of contents; `years`: buttons to choose among, if any.
struct Page {
  std::string title;
  Blocks blocks;
  std::vector<std::pair<std::string, std::string>> navigation = {};
  std::vector<std::string> years = {};
};
std::string to_html(const Page& page);

// With the pictures below pictures/ and the tables below tables/.
std::string to_markdown(const Page& page);

struct DocumentTable {
  std::string file;  // stem below tables/: "ddp_2025", "ddp_2025_runs"
  measure::Table table;
  Provenance made;
};

struct Document {
  Page page;
  std::vector<DocumentTable> tables;  // each also a file
  std::vector<PictureBlock> pictures;
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

// pictures.cc: those of all results, in their order: one name has one colour in all of them, and
// each says where it comes from.
std::vector<std::vector<PictureBlock>> draw_pictures(const std::vector<Result>& results);

// The machine and moment of a result, for files that stand alone with its command before it.
std::string origin_of(const Provenance& made);
// "ddp" of measurement "ddp_2025" is "ddp_2025"; "ddp_runs" is "ddp_2025_runs".
std::string stem_of(const Result& result, const std::string& name);

}  // namespace flashstep::tools
