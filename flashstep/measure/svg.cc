#include "flashstep/measure/svg.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/utf8.h"

namespace flashstep::measure {
namespace {

// Advance widths of U+0020 to U+007E in DejaVu Sans, in hundredths of the font size.
constexpr unsigned char kWidths[] = {
    32, 40, 46, 84, 64, 95, 78, 28, 39,  39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 78, 75, 30, 30, 66, 56, 86, 75, 79,
    60, 79, 70, 64, 61, 73, 68, 99, 69,  61, 69, 39, 34, 39, 84, 50, 50, 61, 64, 55, 64, 62, 35, 64,
    63, 28, 28, 58, 28, 97, 63, 61, 64,  64, 41, 52, 39, 63, 59, 82, 59, 59, 53, 64, 34, 64, 84};
constexpr const char* kEllipsis = "…";

std::vector<char32_t> code_points_of(std::string_view text) {
  std::vector<char32_t> points;
  for (size_t i = 0; i < text.size();) points.push_back(next_code_point(text, i));
  return points;
}

std::string joined(const std::vector<char32_t>& points, size_t begin, size_t end) {
  std::string out;
  for (size_t i = begin; i < end; ++i) append_utf8(out, points[i]);
  return out;
}

}  // namespace

std::string svg_number(double value) {
  if (!std::isfinite(value)) value = 0;
  std::string text = fixed(std::clamp(value, -1e6, 1e6), 1);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

std::string xml_escape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\r':
      case '\t':
        out += ' ';
        break;
      default:
        append_utf8(out, c < 0x20 || c == 0xFFFE || c == 0xFFFF ? U'\uFFFD' : c);
    }
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  double hundredths = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t c = next_code_point(text, i);
    const bool ascii = c >= 0x20 && c <= 0x7E;
    hundredths += ascii ? kWidths[c - 0x20] : 66.0 * display_width(text.substr(start, i - start));
  }
  return hundredths * font_size / 100;
}

std::string fit_text(const std::string& text, double font_size, double width, Cut cut) {
  if (text_width(text, font_size) <= width) return text;
  const std::vector<char32_t> points = code_points_of(text);
  for (size_t keep = points.size(); keep > 0; --keep) {
    const size_t tail = cut == Cut::kMiddle ? keep / 2 : 0;
    const std::string candidate = joined(points, 0, keep - tail) + kEllipsis +
                                  joined(points, points.size() - tail, points.size());
    if (text_width(candidate, font_size) <= width) return candidate;
  }
  return kEllipsis;
}

std::vector<std::string> wrap_text(const std::string& text, double font_size, double width,
                                   int max_lines) {
  std::vector<std::string> lines;
  std::string rest = text;
  while (!rest.empty() && static_cast<int>(lines.size()) < max_lines) {
    size_t end = rest.size();
    while (text_width(rest.substr(0, end), font_size) > width) {
      const size_t space = rest.rfind(' ', end - 1);
      if (space == std::string::npos || space == 0) break;
      end = space;
    }
    // On the last line, and for a word wider than the line, the cut shows as an ellipsis.
    const bool last = static_cast<int>(lines.size()) + 1 == max_lines;
    lines.push_back(fit_text(last ? rest : rest.substr(0, end), font_size, width, Cut::kEnd));
    rest = end < rest.size() ? rest.substr(end + 1) : "";
  }
  return lines;
}

void SvgWriter::line(double x1, double y1, double x2, double y2, const std::string& style) {
  text_ += str("<line x1=\"", svg_number(x1), "\" y1=\"", svg_number(y1), "\" x2=\"",
               svg_number(x2), "\" y2=\"", svg_number(y2), "\" ", style, "/>\n");
}

void SvgWriter::rect(double x, double y, double width, double height, const std::string& style) {
  text_ += str("<rect x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" width=\"",
               svg_number(std::max(width, 0.0)), "\" height=\"", svg_number(std::max(height, 0.0)),
               "\" ", style, "/>\n");
}

void SvgWriter::circle(double x, double y, double radius, const std::string& style) {
  text_ += str("<circle cx=\"", svg_number(x), "\" cy=\"", svg_number(y), "\" r=\"",
               svg_number(radius), "\" ", style, "/>\n");
}

void SvgWriter::path(const std::string& data, const std::string& style) {
  text_ += "<path d=\"" + data + "\" " + style + "/>\n";
}

void SvgWriter::title(std::string_view content) {
  text_ += "<title>" + xml_escape(content) + "</title>\n";
}

void SvgWriter::text(double x, double y, std::string_view content, const TextStyle& style) {
  std::string attributes = str("x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" font-size=\"",
                               svg_number(style.size), "\" fill=\"", style.fill, "\"");
  if (std::string_view(style.anchor) != "start")
    attributes += str(" text-anchor=\"", style.anchor, "\"");
  if (style.bold) attributes += " font-weight=\"bold\"";
  if (style.halo)
    attributes +=
        " stroke=\"#ffffff\" stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\"";
  if (style.rotate_degrees != 0)
    attributes += str(" transform=\"rotate(", svg_number(style.rotate_degrees), " ", svg_number(x),
                      " ", svg_number(y), ")\"");
  text_ += "<text " + attributes + ">" + xml_escape(content) + "</text>\n";
}

}  // namespace flashstep::measure
