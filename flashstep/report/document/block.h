// A document as a tree of blocks, and its two writers.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "flashstep/measure/table.h"

namespace flashstep::report {

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
  std::string kind, id;
  std::vector<std::string> years = {};  // that it is shown for; none: for all
  std::vector<Block> blocks = {};
};
struct Block : std::variant<HeadingBlock, ProseBlock, ListBlock, TableBlock, PictureBlock,
                            FoldBlock, GroupBlock> {
  using variant::variant;
};

// block_html.cc: one page that needs no other and no network: style, script and pictures are in it.
// `navigation`: target and text of its table of contents; `years`: buttons to choose among, if any.
struct Page {
  std::string title;
  Blocks blocks;
  std::vector<std::pair<std::string, std::string>> navigation = {};
  std::vector<std::string> years = {};
};
std::string to_html(const Page& page);

// block_markdown.cc: with the pictures below pictures/ and the tables below tables/.
std::string to_markdown(const Page& page);

}  // namespace flashstep::report
