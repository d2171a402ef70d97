// A report as one HTML page.
#include <charconv>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/svg.h"
#include "flashstep/report/document/document.h"
#include "flashstep/report/document/html_page.h"

namespace flashstep::report {
namespace {

std::string escaped(const std::string& text) { return measure::xml_escape(text); }

// Text with `code` between backticks.
std::string prose(const std::string& text) {
  std::string out;
  bool in_code = false;
  size_t start = 0;
  for (size_t end; (end = text.find('`', start)) != std::string::npos; start = end + 1) {
    out += escaped(text.substr(start, end - start)) + (in_code ? "</code>" : "<code>");
    in_code = !in_code;
  }
  return out + escaped(text.substr(start)) + (in_code ? "</code>" : "");
}

// What a table is sorted by: the exact number; nothing for what is none.
std::string sort_key(const measure::Cell& cell) {
  double value = NAN;
  if (const auto* whole = std::get_if<int64_t>(&cell.value())) value = static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&cell.value())) value = *number;
  if (!std::isfinite(value)) return "";
  char buffer[64];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof buffer, value);
  return " data-v=\"" + std::string(&buffer[0], end.ptr) + "\"";
}

void add_table(const DocumentTable& table, std::string& out) {
  const auto side = [&](size_t column) {
    return table.table.columns[column].align == measure::Align::kLeft ? " class=\"left\"" : "";
  };
  out +=
      str("<div class=\"scroll\" tabindex=\"0\"><table id=\"table-", escaped(table.file), "\">\n");
  if (!table.table.title.empty()) out += "<caption>" + escaped(table.table.title) + "</caption>\n";
  out += "<thead><tr>";
  for (size_t i = 0; i < table.table.columns.size(); ++i) {
    const measure::Column& column = table.table.columns[i];
    out += str("<th scope=\"col\"", side(i), ">", escaped(column.name));
    if (!column.unit.empty()) out += "<span class=\"unit\">" + escaped(column.unit) + "</span>";
    out += "</th>";
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.table.rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out += str("<td", side(i), sort_key(row[i]), ">",
                 escaped(measure::display(row[i], table.table.columns[i].format)), "</td>");
    }
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  for (const std::string& note : table.table.notes)
    out += "<p class=\"notes\">" + prose(note) + "</p>\n";
  out += "<p class=\"soft\">";
  for (const char* form : {"csv", "md", "tex", "json"})
    out += str("<a href=\"tables/", escaped(table.file), ".", form, "\">", form, "</a> ");
  out += "</p>\n";
}

// The document's own head would be a second one inside the page.
std::string inline_svg(const std::string& svg) {
  const size_t start = svg.find("<svg");
  return start == std::string::npos ? "" : svg.substr(start);
}

void add_result_html(const DocumentResult& result, std::string& out) {
  out += str("<article id=\"result-", escaped(result.measurement), "\">\n<h3>",
             escaped(result.measurement), "</h3>\n");
  if (!result.trouble.empty())
    out += "<p class=\"trouble\">It failed: " + prose(result.trouble) + ".</p>\n";
  for (const DocumentTable& table : result.tables) {
    if (table.detail) {
      out += str("<details><summary>",
                 escaped(table.table.title.empty() ? table.file : table.table.title), " (",
                 table.table.rows.size(), " rows)</summary>\n");
    }
    add_table(table, out);
    if (table.detail) out += "</details>\n";
  }
  for (const DocumentPicture& picture : result.pictures) {
    out += str("<figure id=\"picture-", escaped(picture.file), "\">", inline_svg(picture.svg),
               "<figcaption class=\"soft\">", escaped(picture.title), " <a href=\"pictures/",
               escaped(picture.file), ".svg\">svg</a></figcaption></figure>\n");
  }
  for (const std::string& file : result.files)
    out += str("<p class=\"soft\"><a href=\"", escaped(file), "\">", escaped(file), "</a></p>\n");
  out += "<p class=\"made\">" + prose(describe(result.made)) + "</p>\n</article>\n";
}

void add_answer_html(const Answer& answer, std::string& out) {
  const std::string years = answer.question->years;
  out += str("<div class=\"answer", answer.measured ? "" : " missing", "\" data-years=\"", years,
             "\"><h3>", escaped(answer.question->name));
  for (size_t at = 0; at + 4 <= years.size(); at += 5)
    out += "<span class=\"year\">" + years.substr(at, 4) + "</span>";
  out += "</h3>\n<p class=\"question\">" + prose(answer.question->text) + "</p>\n";
  for (const AnswerPart& part : answer.parts) {
    out += "<div class=\"part\" data-year=\"" + part.year + "\">\n";
    if (!part.year.empty()) out += "<p class=\"soft\">Preset " + part.year + ":</p>\n";
    out += "<ul>\n";
    for (const std::string& sentence : part.sentences) out += "<li>" + prose(sentence) + "</li>\n";
    out += "</ul>\n</div>\n";
  }
  if (!answer.used.empty()) {
    out += "<p class=\"soft\">From";
    for (const std::string& name : answer.used)
      out += str(" <a href=\"#result-", escaped(name), "\">", escaped(name), "</a>");
    out += ".</p>\n";
  }
  out += "</div>\n";
}

void add_section(const DocumentSection& section, std::string& out) {
  out += str("<section id=\"", section.name, "\">\n<h2>", escaped(section.title), "</h2>\n<p>",
             prose(section.about), "</p>\n");
  for (const Answer& answer : section.answers) add_answer_html(answer, out);
  for (const DocumentResult& result : section.results) add_result_html(result, out);
  for (const LeftOut& left_out : section.left_out) {
    out += str("<p class=\"leftout\">Left out: ", escaped(left_out.what), ": ", prose(left_out.why),
               ".</p>\n");
  }
  out += "</section>\n";
}

std::string navigation(const Document& document) {
  std::string out =
      "<nav aria-label=\"Sections\">\n<p><button id=\"theme\">light / dark</button></p>\n<p>"
      "<button data-year=\"\" aria-pressed=\"true\">all</button> ";
  for (const char* year : {"2024", "2025", "2026"})
    out += str("<button data-year=\"", year, "\" aria-pressed=\"false\">", year, "</button> ");
  out += "</p>\n<ol>\n";
  for (const DocumentSection& section : document.sections) {
    size_t measured = 0;
    for (const Answer& answer : section.answers) measured += answer.measured;
    out +=
        str("<li><a href=\"#", section.name, "\">", escaped(section.title),
            "</a> <span class=\"count\">", measured, "/", section.answers.size(), "</span></li>\n");
  }
  return out + "</ol>\n</nav>\n";
}

}  // namespace

std::string to_html(const Document& document) {
  // The policy lets the page load nothing, whatever stood in a result.
  std::string out =
      str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n<title>",
          escaped(document.title), "</title>\n<style>", kPageStyle, "</style>\n</head>\n<body>\n",
          "<div class=\"layout\">\n", navigation(document), "<main>\n<h1>", escaped(document.title),
          "</h1>\n<p class=\"soft\">", prose(document.subtitle), "</p>\n<p>", document.measured(),
          " of ", document.asked(), " questions are answered.</p>\n");
  for (const std::string& remark : document.remarks)
    out += "<p class=\"remark\">" + prose(remark) + "</p>\n";
  for (const DocumentSection& section : document.sections) add_section(section, out);
  return out + "</main>\n</div>\n<script>" + kPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace flashstep::report
