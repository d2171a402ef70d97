#include "flashstep/report/page.h"

#include <charconv>
#include <cmath>
#include <regex>

#include "flashstep/base/text.h"
#include "flashstep/measure/svg.h"
#include "flashstep/report/texts.h"

namespace flashstep::tools {
namespace {

using measure::xml_escape;

// Text with `code`, **bold** and [links](target).
std::string html_prose(std::string text) {
  static const std::regex mark(R"(`([^`]*)`|\*\*([\s\S]*?)\*\*|\[([\s\S]*?)\]\(([\s\S]*?)\))");
  std::string out;
  for (std::smatch found; std::regex_search(text, found, mark); text = found.suffix()) {
    out += xml_escape(found.prefix().str());
    if (found[1].matched)
      out += "<code>" + xml_escape(found.str(1)) + "</code>";
    else if (found[2].matched)
      out += "<strong>" + html_prose(found[2]) + "</strong>";
    else
      out += str("<a href=\"", xml_escape(found.str(4)), "\">", xml_escape(found.str(3)), "</a>");
  }
  return out + xml_escape(text);
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
  return value.empty() ? "" : str(" ", name, "=\"", xml_escape(value), "\"");
}

std::string html_table(const measure::Table& table, const std::string& file) {
  const auto side = [&](size_t column) {
    return table.columns[column].align == measure::Align::kLeft ? " class=\"left\"" : "";
  };
  const std::string id = file.empty() ? "" : "table-" + file;
  std::string out =
      str("<div class=\"scroll\" tabindex=\"0\"><table", attribute("id", id), ">\n<thead><tr>");
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const measure::Column& column = table.columns[i];
    out += str("<th scope=\"col\"", side(i), ">", xml_escape(column.name));
    if (!column.unit.empty()) out += "<span class=\"unit\">" + xml_escape(column.unit) + "</span>";
    out += "</th>";
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out += str("<td", side(i), sort_key(row[i]), ">",
                 xml_escape(measure::display(row[i], table.columns[i].format)), "</td>");
    }
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  for (const std::string& note : table.notes)
    out += "<p class=\"soft\">" + html_prose(note) + "</p>\n";
  if (file.empty()) return out;
  out += "<p class=\"soft\">";
  for (const char* form : {"csv", "md", "json"})
    out += str("<a href=\"tables/", xml_escape(file), ".", form, "\">", form, "</a> ");
  return out + "</p>\n";
}

}  // namespace

void Page::paragraph(const std::string& text) {
  if (!markdown_.empty() && !markdown_.ends_with("\n\n")) markdown_ += "\n";  // behind links
  markdown_ += text + "\n\n";
}

void Page::heading(int level, const std::string& text, const std::string& id,
                   const std::string& tag) {
  if (level == 1) title_ = text;
  if (level == 2 && !id.empty()) {
    if (contents_.empty()) first_page_ = markdown_.size();
    contents_.emplace_back(id, text);
  }
  html_ += str("<h", level, attribute("id", id), ">", html_prose(text),
               tag.empty() ? "" : " <small>" + xml_escape(tag) + "</small>", "</h", level, ">\n");
  paragraph(str(std::string(static_cast<size_t>(level), '#'), " ",
                id.empty() ? "" : "<a id=\"" + id + "\"></a>", text,
                tag.empty() ? "" : " (" + tag + ")"));
}

void Page::prose(const std::string& text, const std::string& style) {
  html_ += str("<p", attribute("class", style), ">", html_prose(text), "</p>\n");
  paragraph(style == "question" ? "*" + text + "*" : style == "remark" ? "> " + text : text);
}

void Page::list(const std::vector<std::string>& items, bool numbered) {
  const char* name = numbered ? "ol" : "ul";
  html_ += str("<", name, ">\n");
  for (size_t i = 0; i < items.size(); ++i) {
    html_ += "<li>" + html_prose(items[i]) + "</li>\n";
    markdown_ += str(numbered ? str(i + 1, ". ") : "- ", items[i], "\n");
  }
  html_ += str("</", name, ">\n");
  markdown_ += "\n";
}

void Page::table(const measure::Table& table, const std::string& file) {
  html_ += html_table(table, file);
  if (folds_ > 0 && !file.empty()) {
    // A table of every single run is for programs.
    const char* form = file.ends_with("_runs") ? ".csv" : ".md";
    markdown_ += str("- [", table.title.empty() ? file : table.title, "](tables/", file, form,
                     "), ", table.rows.size(), table.rows.size() == 1 ? " row\n" : " rows\n");
  } else {
    std::string text = measure::to_markdown(table);
    text.erase(text.find_last_not_of('\n') + 1);
    paragraph(text);
  }
}

void Page::picture(const PictureFile& picture, bool again) {
  // The document's own head would be a second one inside the page.
  const size_t start = picture.svg.find("<svg");
  html_ += str("<figure", attribute("id", again ? "" : "picture-" + picture.file), ">",
               start == std::string::npos ? "" : picture.svg.substr(start), "</figure>\n");
  const std::string link = str("[", picture.title, "](pictures/", picture.file, ".svg)");
  if (folds_ > 0)
    markdown_ += "- " + link + "\n";
  else
    paragraph("!" + link);
}

void Page::fold(const std::string& summary, const std::string& id, const Inside& inside) {
  const bool outer = folds_ == 0;  // a fold in a fold adds nothing to Markdown: it is links already
  html_ += str("<details", attribute("id", id), "><summary>", html_prose(summary), "</summary>\n");
  if (outer) markdown_ += str("<details><summary>", summary, "</summary>\n\n");
  ++folds_;
  inside();
  --folds_;
  html_ += "</details>\n";
  if (outer) markdown_ += str(markdown_.ends_with("\n\n") ? "" : "\n", "</details>\n\n");
}

void Page::group(const std::string& kind, const std::vector<std::string>& years,
                 const Inside& inside) {
  const char* name = kind == "section" ? "section" : "div";
  html_ +=
      str("<", name, attribute("class", kind), attribute("data-years", join(years, " ")), ">\n");
  inside();
  html_ += str("</", name, ">\n");
}

std::string Page::html(const std::vector<std::string>& years) const {
  // The policy lets the page load nothing, whatever stood in a result.
  std::string out =
      str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n<title>",
          xml_escape(title_), "</title>\n<style>", page_style(), "</style>\n</head>\n<body>\n",
          "<div class=\"layout\">\n<nav aria-label=\"Sections\">\n"
          "<p><button id=\"theme\">light / dark</button>");
  if (years.size() > 1) {
    out += " <button data-year=\"\" aria-pressed=\"true\">all</button>";
    for (const std::string& year : years)
      out += str(" <button data-year=\"", xml_escape(year), "\" aria-pressed=\"false\">",
                 xml_escape(year), "</button>");
  }
  out += "</p>\n<ol>\n";
  for (const auto& [place, text] : contents_)
    out += str("<li><a href=\"#", xml_escape(place), "\">", xml_escape(text), "</a></li>\n");
  return str(out, "</ol>\n</nav>\n<main>\n", html_, "</main>\n</div>\n<script>", page_script(),
             "</script>\n</body>\n</html>\n");
}

std::string Page::markdown() const {
  std::string contents;
  for (const auto& [place, text] : contents_) contents += str("- [", text, "](#", place, ")\n");
  std::string out = markdown_;
  return contents.empty() ? out : out.insert(first_page_, contents + "\n");
}

}  // namespace flashstep::tools
