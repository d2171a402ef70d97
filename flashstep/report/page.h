// One page of texts, tables and pictures, written as HTML and as Markdown at once.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/measure/table.h"

namespace flashstep::tools {

struct PictureFile {
  std::string file, title, svg;  // file: stem below pictures/
};

// The HTML needs no other page and no network: style, script and pictures are in it. The Markdown,
// for GitHub and for terminals, has its pictures below pictures/ and its tables below tables/.
class Page {
 public:
  using Inside = std::function<void()>;  // writes what lies in it

  // Texts may hold `code`, **bold** and [links](target). `id`: of the place; `tag`: small print
  // behind it. The first level is the page's title, the second with an id its table of contents.
  void heading(int level, const std::string& text, const std::string& id = "",
               const std::string& tag = "");
  // `style`: a class of the page: "soft", "question", "missing", "remark".
  void prose(const std::string& text, const std::string& style = "");
  void list(const std::vector<std::string>& items, bool numbered = false);
  // `file`: stem below tables/; empty: it is no file.
  void table(const measure::Table& table, const std::string& file = "");
  void picture(const PictureFile& picture, bool again = false);  // it has its place elsewhere
  // Folded away on the page until someone opens it. In Markdown, where pages do not fold well, its
  // tables and pictures are links to their files.
  void fold(const std::string& summary, const std::string& id, const Inside& inside);
  // What belongs together: a section, an answer, the part of a year. `years`: that it is shown for;
  // none: for all.
  void group(const std::string& kind, const std::vector<std::string>& years, const Inside& inside);

  // `years`: buttons to choose among, if any.
  std::string html(const std::vector<std::string>& years) const;
  std::string markdown() const;

 private:
  void paragraph(const std::string& text);  // of the Markdown

  std::string title_, html_, markdown_;
  std::vector<std::pair<std::string, std::string>> contents_;  // places and their texts
  size_t first_page_ = 0;  // of the Markdown, in bytes: the table of contents stands behind it
  int folds_ = 0;          // that are open
};

}  // namespace flashstep::tools
