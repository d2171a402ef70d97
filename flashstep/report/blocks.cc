// Blocks as an HTML page, and as Markdown for GitHub and terminals.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>

#include "flashstep/base/text.h"
#include "flashstep/measure/svg.h"
#include "flashstep/report/document.h"
#include "flashstep/report/texts.h"

namespace flashstep::tools {
namespace {

std::string html_text(const std::string& text) { return measure::xml_escape(text); }

// Text with `code`, **bold** and [links](target).
std::string html_prose(const std::string& text) {
  static const std::regex mark(R"(`([^`]*)`|\*\*([\s\S]*?)\*\*|\[([\s\S]*?)\]\(([\s\S]*?)\))");
  std::string out;
  size_t plain = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), mark), end; at != end; ++at) {
    const std::smatch& found = *at;
    const auto begin = static_cast<size_t>(found.position());
    out += html_text(text.substr(plain, begin - plain));
    if (found[1].matched)
      out += "<code>" + html_text(found[1]) + "</code>";
    else if (found[2].matched)
      out += "<strong>" + html_prose(found[2]) + "</strong>";
    else
      out += str("<a href=\"", html_text(found[4]), "\">", html_text(found[3]), "</a>");
    plain = begin + found.str().size();
  }
  return out + html_text(text.substr(plain));
}

// What a table is sorted by: the exact number; nothing for what is none.
std::string sort_key(const measure::Cell& cell) {
  const double value = cell.number();
  if (!std::isfinite(value)) return "";
  char buffer[64];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof buffer, value);
  return " data-v=\"" + std::string(&buffer[0], end.ptr) + "\"";
}

std::string attribute(const char* name, const std::string& value) {
  return value.empty() ? "" : str(" ", name, "=\"", html_text(value), "\"");
}

class HtmlWriter {
 public:
  std::string write(const Blocks& blocks) {
    for (const Block& block : blocks)
      std::visit([&](const auto& kind) { add(kind); }, static_cast<const Block::variant&>(block));
    return std::move(out_);
  }

 private:
  void add(const HeadingBlock& heading) {
    out_ += str("<h", heading.level, attribute("id", heading.id), ">", html_prose(heading.text),
                heading.tag.empty() ? "" : " <small>" + html_text(heading.tag) + "</small>", "</h",
                heading.level, ">\n");
  }
  void add(const ProseBlock& prose) {
    out_ += str("<p", attribute("class", prose.style), ">", html_prose(prose.text), "</p>\n");
  }
  void add(const ListBlock& list) {
    const char* name = list.numbered ? "ol" : "ul";
    out_ += str("<", name, ">\n");
    for (const std::string& item : list.items) out_ += "<li>" + html_prose(item) + "</li>\n";
    out_ += str("</", name, ">\n");
  }
  void add(const TableBlock& block);
  void add(const PictureBlock& picture) {
    // The document's own head would be a second one inside the page.
    const size_t start = picture.svg.find("<svg");
    out_ += str("<figure", attribute("id", picture.again ? "" : "picture-" + picture.file), ">",
                start == std::string::npos ? "" : picture.svg.substr(start), "</figure>\n");
  }
  void add(const FoldBlock& fold) {
    out_ += str("<details", attribute("id", fold.id), "><summary>", html_prose(fold.summary),
                "</summary>\n");
    add_all(fold.blocks);
    out_ += "</details>\n";
  }
  void add(const GroupBlock& group) {
    const char* name = group.kind == "section" ? "section" : "div";
    out_ += str("<", name, attribute("class", group.kind),
                attribute("data-years", join(group.years, " ")), ">\n");
    add_all(group.blocks);
    out_ += str("</", name, ">\n");
  }
  void add_all(const Blocks& blocks) { out_ += HtmlWriter().write(blocks); }

  std::string out_;
};

void HtmlWriter::add(const TableBlock& block) {
  const measure::Table& table = block.table;
  const auto side = [&](size_t column) {
    return table.columns[column].align == measure::Align::kLeft ? " class=\"left\"" : "";
  };
  const std::string id = block.file.empty() ? "" : "table-" + block.file;
  out_ += str("<div class=\"scroll\" tabindex=\"0\"><table", attribute("id", id), ">\n<thead><tr>");
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const measure::Column& column = table.columns[i];
    out_ += str("<th scope=\"col\"", side(i), ">", html_text(column.name));
    if (!column.unit.empty()) out_ += "<span class=\"unit\">" + html_text(column.unit) + "</span>";
    out_ += "</th>";
  }
  out_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out_ += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out_ += str("<td", side(i), sort_key(row[i]), ">",
                  html_text(measure::display(row[i], table.columns[i].format)), "</td>");
    }
    out_ += "</tr>\n";
  }
  out_ += "</tbody></table></div>\n";
  for (const std::string& note : table.notes)
    out_ += "<p class=\"soft\">" + html_prose(note) + "</p>\n";
  if (block.file.empty()) return;
  out_ += "<p class=\"soft\">";
  for (const char* form : {"csv", "md", "json"})
    out_ += str("<a href=\"tables/", html_text(block.file), ".", form, "\">", form, "</a> ");
  out_ += "</p>\n";
}

std::string navigation_of(const Page& page) {
  std::string out = "<nav aria-label=\"Sections\">\n<p><button id=\"theme\">light / dark</button>";
  if (page.years.size() > 1) {
    out += " <button data-year=\"\" aria-pressed=\"true\">all</button>";
    for (const std::string& year : page.years)
      out += str(" <button data-year=\"", html_text(year), "\" aria-pressed=\"false\">",
                 html_text(year), "</button>");
  }
  out += "</p>\n<ol>\n";
  for (const auto& [target, text] : page.navigation)
    out += str("<li><a href=\"#", html_text(target), "\">", html_text(text), "</a></li>\n");
  return out + "</ol>\n</nav>\n";
}

// Blocks as Markdown, for GitHub and for terminals.
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

std::string to_html(const Page& page) {
  // The policy lets the page load nothing, whatever stood in a result.
  return str(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>",
      html_text(page.title), "</title>\n<style>", page_style(), "</style>\n</head>\n<body>\n",
      "<div class=\"layout\">\n", navigation_of(page), "<main>\n", HtmlWriter().write(page.blocks),
      "</main>\n</div>\n<script>", page_script(), "</script>\n</body>\n</html>\n");
}

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

}  // namespace flashstep::tools
