#include "flashstep/measure/heat_map.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/plot_frame.h"
#include "flashstep/measure/table.h"

namespace flashstep::measure {
namespace {

using namespace internal;

constexpr double kFieldSize = 11.5;
constexpr double kRowHeight = 26, kWidestRowName = 220;
constexpr double kStrongest = 2;  // log2: a factor of four

struct Color {
  double red, green, blue;
};
// Okabe and Ito's vermilion and blue, which colour-blind people tell apart.
constexpr Color kLess = {0xd5, 0x5e, 0x00}, kEven = {0xff, 0xff, 0xff}, kMore = {0x00, 0x72, 0xb2};

bool is_ratio(double value) { return std::isfinite(value) && value > 0; }

double strength(double ratio) { return std::clamp(std::log2(ratio) / kStrongest, -1.0, 1.0); }

void check(const HeatMap& map) {
  const size_t fields = map.columns.size() * map.rows.size();
  require(map.values.size() == fields, "[heat map] expected a value for each of the ", fields,
          " fields, got ", map.values.size());
}

double row_names_width(const HeatMap& map) {
  double width = text_width(map.y_label, kTextSize);
  for (const std::string& name : map.rows) width = std::max(width, text_width(name, kTextSize));
  return std::min(width, kWidestRowName);
}

void draw_field(SvgWriter& svg, const HeatMap& map, size_t index, double left, double top,
                double width) {
  const double value = map.values[index];
  const bool drawn = is_ratio(value);
  svg.rect(left, top, width, kRowHeight,
           str("fill=\"", drawn ? ratio_color(value) : "#f4f4f4",
               "\" stroke=\"#ffffff\" stroke-width=\"1.5\""));
  const std::string label =
      drawn ? display(value, {NumberFormat::Style::kSignificant, 3}) : std::string();
  const bool dark = drawn && std::abs(strength(value)) > 0.6;  // white is read better there
  svg.text(left + width / 2, top + kRowHeight / 2 + kFieldSize * kBaseline,
           fit_text(label, kFieldSize, width - 4, Cut::kEnd),
           {.size = kFieldSize, .anchor = "middle", .fill = dark ? "#ffffff" : kInk});
}

// The names of the columns, the fields with the names of the rows; returns where they end.
double draw_fields(SvgWriter& svg, const HeatMap& map, double y) {
  const double left = kMargin + row_names_width(map) + 10;
  const double width =
      (map.width - kMargin - left) / static_cast<double>(std::max<size_t>(map.columns.size(), 1));
  const TextStyle soft = {.size = kTextSize, .anchor = "end", .fill = kSoftInk};
  svg.text(left - 8, y + 14, fit_text(map.y_label, kTextSize, kWidestRowName, Cut::kEnd), soft);
  for (size_t i = 0; i < map.columns.size(); ++i) {
    svg.text(left + (static_cast<double>(i) + 0.5) * width, y + 14,
             fit_text(map.columns[i], kTextSize, width - 4, Cut::kMiddle),
             {.size = kTextSize, .anchor = "middle", .fill = kSoftInk});
  }
  y += 20;
  for (size_t row = 0; row < map.rows.size(); ++row, y += kRowHeight) {
    svg.text(left - 8, y + kRowHeight / 2 + kTextSize * kBaseline,
             fit_text(map.rows[row], kTextSize, kWidestRowName, Cut::kMiddle), soft);
    for (size_t i = 0; i < map.columns.size(); ++i) {
      draw_field(svg, map, row * map.columns.size() + i, left + static_cast<double>(i) * width, y,
                 width);
    }
  }
  if (map.rows.empty() || map.columns.empty()) {
    svg.text(map.width / 2, y + 20, "no data", {.size = 15, .anchor = "middle", .fill = kSoftInk});
    y += 30;
  }
  return y;
}

}  // namespace

std::string ratio_color(double ratio) {
  const double share = strength(ratio);
  const Color& end = share < 0 ? kLess : kMore;
  const auto mixed = [&](double from, double to) {
    return static_cast<int>(std::lround(from + (to - from) * std::abs(share)));
  };
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", mixed(kEven.red, end.red) & 0xff,
                mixed(kEven.green, end.green) & 0xff, mixed(kEven.blue, end.blue) & 0xff);
  return text;
}

std::string to_svg(const HeatMap& map) {
  check(map);
  SvgWriter svg;
  double y = draw_heading(svg, map.title, map.subtitle, map.width);
  y = draw_fields(svg, map, y + 8);
  if (!map.x_label.empty()) {
    const double middle = (kMargin + row_names_width(map) + 10 + map.width - kMargin) / 2;
    svg.text(middle, y + 16, fit_text(map.x_label, kTextSize, map.width / 2, Cut::kEnd),
             {.size = kTextSize, .anchor = "middle", .fill = kSoftInk});
    y += 22;
  }
  y = draw_footnote(svg, map.footnote, map.width, y + 6);
  return document_head(map.title, str(map.y_label, " by ", map.x_label), map.width,
                       std::ceil(y + 8)) +
         svg.take() + "</svg>\n";
}

}  // namespace flashstep::measure
