// Blocks as Markdown, for GitHub and for terminals.
#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/report/document/block.h"

namespace flashstep::report {
namespace {

class MarkdownWriter {
 public:
  explicit MarkdownWriter(bool folded) : folded_(folded) {}

  std::string write(const Blocks& blocks) {
    for (const Block& block : blocks)
      std::visit([&](const auto& kind) { add(kind); }, static_cast<const Block::variant&>(block));
    return std::move(out_);
  }

 private:
  void paragraph(const std::string& text) {
    if (!out_.empty() && !out_.ends_with("\n\n")) out_ += "\n";  // behind a list of links
    out_ += text + "\n\n";
  }

  void add(const HeadingBlock& heading) {
    const std::string place = heading.id.empty() ? "" : "<a id=\"" + heading.id + "\"></a>";
    paragraph(str(std::string(static_cast<size_t>(heading.level), '#'), " ", place, heading.text,
                  heading.tag.empty() ? "" : " (" + heading.tag + ")"));
  }
  void add(const ProseBlock& prose) {
    paragraph(prose.style == "question" ? "*" + prose.text + "*"
              : prose.style == "remark" ? "> " + prose.text
                                        : prose.text);
  }
  void add(const ListBlock& list) {
    for (size_t i = 0; i < list.items.size(); ++i)
      out_ += str(list.numbered ? str(i + 1, ". ") : "- ", list.items[i], "\n");
    out_ += "\n";
  }
  void add(const TableBlock& block) {
    const measure::Table& table = block.table;
    if (folded_ && !block.file.empty()) {
      // A table of every single run is for programs.
      const char* form = block.file.ends_with("_runs") ? ".csv" : ".md";
      out_ += str("- [", table.title.empty() ? block.file : table.title, "](tables/", block.file,
                  form, "), ", table.rows.size(), table.rows.size() == 1 ? " row\n" : " rows\n");
    } else {
      std::string text = measure::to_markdown(table);
      text.erase(text.find_last_not_of('\n') + 1);
      paragraph(text);
    }
  }
  void add(const PictureBlock& picture) {
    const std::string link = str("[", picture.title, "](pictures/", picture.file, ".svg)");
    if (folded_)
      out_ += "- " + link + "\n";
    else
      paragraph("!" + link);
  }
  // A fold in a fold adds nothing here: it is links already.
  void add(const FoldBlock& fold) {
    const std::string inside = MarkdownWriter(true).write(fold.blocks);
    out_ += folded_ ? inside
                    : str("<details><summary>", fold.summary, "</summary>\n\n", inside,
                          "\n</details>\n\n");
  }
  void add(const GroupBlock& group) { out_ += MarkdownWriter(folded_).write(group.blocks); }

  bool folded_;
  std::string out_;
};

}  // namespace

std::string to_markdown(const Page& page) {
  std::string contents;
  for (const auto& [target, text] : page.navigation)
    contents += str("- [", text, "](#", target, ")\n");
  std::string out = MarkdownWriter(false).write(page.blocks);
  // Behind the first page, which ends where the first section begins.
  const size_t at = out.find("\n## <a id=");
  if (at != std::string::npos) out.insert(at, "\n" + contents);
  return out;
}

}  // namespace flashstep::report
