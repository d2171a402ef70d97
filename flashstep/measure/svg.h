// What is written into an SVG file: numbers, text, and how wide that text will be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashstep::measure {

// A coordinate with one decimal; never "nan" or "inf", which no SVG reader accepts.
std::string svg_number(double value);

// Text for element content and attributes: & < > " ' escaped; control characters, which XML cannot
// hold, and malformed UTF-8 become U+FFFD; line breaks and tabs become spaces.
std::string xml_escape(std::string_view text);

// Width in pixels at this font size. Computed with the widths of DejaVu Sans, the widest of the
// usual sans-serif faces, so that what fits here fits with Helvetica or Arial too.
double text_width(std::string_view text, double font_size);

// The text, or its beginning (or, for names that differ at their ends, both ends) and an ellipsis,
// so that it is no wider than `width`.
enum class Cut { kEnd, kMiddle };
std::string fit_text(const std::string& text, double font_size, double width, Cut cut);

// The text broken at spaces into lines no wider than `width`; the last of `max_lines` is cut to
// fit.
std::vector<std::string> wrap_text(const std::string& text, double font_size, double width,
                                   int max_lines);

struct TextStyle {
  double size = 12;
  const char* anchor = "start";  // start, middle, end
  std::string fill = "#333333";
  bool bold = false;
  bool halo = false;          // a white rim, for text over lines
  double rotate_degrees = 0;  // around (x, y)
};

// Elements as text, in the order they are drawn.
class SvgWriter {
 public:
  void open(const std::string& element) { text_ += "<" + element + ">\n"; }
  void close(const std::string& name) { text_ += "</" + name + ">\n"; }
  void line(double x1, double y1, double x2, double y2, const std::string& style);
  void rect(double x, double y, double width, double height, const std::string& style);
  void circle(double x, double y, double radius, const std::string& style);
  void path(const std::string& data, const std::string& style);
  void title(std::string_view content);  // what a browser shows over the element that is open
  void text(double x, double y, std::string_view content, const TextStyle& style);
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace flashstep::measure
