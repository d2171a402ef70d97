// A report in Markdown.
#include "flashstep/base/text.h"
#include "flashstep/report/document/document.h"

namespace flashstep::report {
namespace {

// As GitHub makes the anchor of a heading: lower case, blanks to hyphens, the rest of punctuation
// left out.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (c >= 'A' && c <= 'Z') anchor += static_cast<char>(c - 'A' + 'a');
    if (letter) anchor += c;
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

std::string heading_of(const Answer& answer) {
  const std::string years = answer.question->years;
  return str(answer.question->name, years.empty() ? "" : " [" + years + "]");
}

void add_answer(const Answer& answer, std::string& out) {
  out += str("### ", heading_of(answer), "\n\n*", answer.question->text, "*\n\n");
  for (const AnswerPart& part : answer.parts) {
    if (!part.year.empty()) out += "Preset " + part.year + ":\n";
    for (const std::string& sentence : part.sentences) out += sentence + "\n";
    out += "\n";
  }
  if (!answer.used.empty()) out += "From: " + join(answer.used) + ".\n\n";
}

void add_result(const DocumentResult& result, std::string& out) {
  out += "### Result: " + result.measurement + "\n\n";
  if (!result.trouble.empty()) out += "It failed: " + result.trouble + ".\n\n";
  for (const DocumentTable& table : result.tables) {
    const std::string text = measure::to_markdown(table.table);
    if (table.detail)
      out += str("<details><summary>", table.file, "</summary>\n\n", text, "\n</details>\n\n");
    else
      out += text + "\n";
  }
  for (const DocumentPicture& picture : result.pictures)
    out += str("![", picture.title, "](pictures/", picture.file, ".svg)\n\n");
  for (const std::string& file : result.files) out += str("[", file, "](", file, ")\n\n");
  out += describe(result.made) + "\n\n";
}

}  // namespace

std::string to_markdown(const Document& document) {
  std::string out = str("# ", document.title, "\n\n", document.subtitle, "\n\n");
  out += str(document.measured(), " of ", document.asked(), " questions are answered.\n\n");
  for (const std::string& remark : document.remarks) out += "> " + remark + "\n>\n";
  if (!document.remarks.empty()) out += "\n";
  for (const DocumentSection& section : document.sections)
    out += str("- [", section.title, "](#", anchor_of(section.title), ")\n");
  for (const DocumentSection& section : document.sections) {
    out += str("\n## ", section.title, "\n\n", section.about, "\n\n");
    for (const Answer& answer : section.answers) add_answer(answer, out);
    for (const DocumentResult& result : section.results) add_result(result, out);
    for (const LeftOut& left_out : section.left_out)
      out += str("Left out: ", left_out.what, ": ", left_out.why, ".\n\n");
  }
  return out;
}

}  // namespace flashstep::report
