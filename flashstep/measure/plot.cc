#include "flashstep/measure/plot.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/plot_frame.h"
#include "flashstep/measure/png.h"

namespace flashstep::measure {
namespace {

using namespace internal;

constexpr double kTitleSize = 17, kSubtitleSize = 13, kFootnoteSize = 10.5;
constexpr double kBoldWidening = 1.13;   // bold letters against the regular ones of text_width()
constexpr double kSmallestHeight = 120;  // of the data, whatever stands around them
constexpr const char* kFonts = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif";
constexpr double kPngScale = 1.5;

void check(const Plot& plot) {
  for (const Series& s : plot.series) {
    const bool bars = s.kind == Series::Kind::kBars;
    require(bars || s.x.size() == s.y.size(), "[plot] expected as many x as y in \"", s.name,
            "\", got ", s.x.size(), " and ", s.y.size());
    require(!bars || s.y.size() == plot.categories.size(), "[plot] expected a bar for each of the ",
            plot.categories.size(), " categories in \"", s.name, "\", got ", s.y.size());
  }
}

// Draws the lines below each other from `y` on; returns where they end.
double draw_lines(SvgWriter& svg, const std::vector<std::string>& lines, double y,
                  double line_height, const TextStyle& style) {
  for (const std::string& line : lines) {
    svg.text(kMargin, y + style.size * 0.9, line, style);
    y += line_height;
  }
  return y;
}

// Title, subtitle, legend and the name of the y axis; returns where they end.
double draw_head(SvgWriter& svg, const Plot& plot, const Legend& legend,
                 const std::vector<Pen>& pens) {
  const double width = plot.width - 2 * kMargin;
  double y = draw_heading(svg, plot.title, plot.subtitle, plot.width);
  if (legend.height > 0) {
    draw_legend(svg, plot, legend, pens, kMargin, y + 5);
    y += legend.height + 5;
  }
  if (plot.y.label.empty()) return y;
  return draw_lines(svg, {fit_text(plot.y.label, kTextSize, width, Cut::kEnd)}, y + 7, 20,
                    {.size = kTextSize, .fill = kSoftInk});
}

// The data and the lines across them. A nested svg clips without an id, of which a page with
// several pictures would hold duplicates.
void draw_inside(SvgWriter& svg, const Plot& plot, const Frame& frame,
                 const std::vector<Pen>& pens) {
  const double rim = 5;  // so that a dot on the edge stays whole
  const std::string x = svg_number(frame.left - rim), y = svg_number(frame.top - rim);
  const std::string width = svg_number(frame.right - frame.left + 2 * rim);
  const std::string height = svg_number(frame.bottom - frame.top + 2 * rim);
  svg.open(str("svg x=\"", x, "\" y=\"", y, "\" width=\"", width, "\" height=\"", height,
               "\" viewBox=\"", x, " ", y, " ", width, " ", height, "\""));
  draw_series(svg, plot, frame, pens);
  draw_references(svg, plot, frame);
  if (!frame.any_data)
    svg.text((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "no data",
             {.size = 15, .anchor = "middle", .fill = kSoftInk});
  svg.close("svg");
}

std::string description(const Plot& plot) {
  std::vector<std::string> names;
  for (const Series& s : plot.series)
    if (!s.name.empty()) names.push_back(s.name);
  return str(plot.y.label, " over ", plot.x.label, ": ", join(names, "; "));
}

}  // namespace

std::string internal::document_head(const std::string& title, const std::string& description,
                                    double width, double height) {
  const std::string w = svg_number(width), h = svg_number(height);
  return str("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", w, "\" height=\"", h,
             "\" viewBox=\"0 0 ", w, " ", h, "\" role=\"img\" font-family=\"", kFonts,
             "\">\n<title>", xml_escape(title), "</title>\n<desc>", xml_escape(description),
             "</desc>\n<rect width=\"", w, "\" height=\"", h, "\" fill=\"#ffffff\"/>\n");
}

double internal::draw_heading(SvgWriter& svg, const std::string& title, const std::string& subtitle,
                              double page_width) {
  const double width = page_width - 2 * kMargin;
  const double y = draw_lines(svg, wrap_text(title, kTitleSize, width / kBoldWidening, 2), kMargin,
                              22, {.size = kTitleSize, .fill = kInk, .bold = true});
  return draw_lines(svg, wrap_text(subtitle, kSubtitleSize, width, 3), y + 1, 18,
                    {.size = kSubtitleSize, .fill = kSoftInk});
}

double internal::draw_footnote(SvgWriter& svg, const std::string& footnote, double page_width,
                               double y) {
  const auto lines = wrap_text(footnote, kFootnoteSize, page_width - 2 * kMargin, 3);
  return draw_lines(svg, lines, y, 14, {.size = kFootnoteSize, .fill = "#777777"});
}

WrittenPlot write_picture(const std::string& svg, const std::filesystem::path& path_stem) {
  WrittenPlot written;
  written.svg = path_stem.string() + ".svg";
  write_file(written.svg, svg);
  if (const auto png = render_png(svg, kPngScale)) {
    written.png = path_stem.string() + ".png";
    write_file(*written.png, *png);
  }
  return written;
}

std::string to_svg(const Plot& plot) {
  check(plot);
  const double width = plot.width - 2 * kMargin;
  const auto footnotes = wrap_text(plot.footnote, kFootnoteSize, width, 3);
  const Legend legend = lay_out_legend(plot, width);
  const std::vector<Pen> pens = pens_of(plot.series);

  // From the top down. The data get what is left of the usual height; further legend lines and
  // slanted names of categories make the page higher instead.
  SvgWriter svg;
  Frame frame;
  choose_intervals(plot, frame);
  frame.top = draw_head(svg, plot, legend, pens) + 10;
  frame.right = plot.width - kMargin - 6;
  const double below = 36 + (plot.x.label.empty() ? 0 : 22) + 14.0 * footnotes.size();
  const double usual = plot.height + legend.extra_height - frame.top - below;
  frame.bottom = frame.top + std::max(usual, kSmallestHeight);
  const auto y_ticks =
      choose_ticks(frame.y, frame.y_scale, static_cast<int>((frame.bottom - frame.top) / 48));
  frame.left = kMargin + widest_label(y_ticks) + 8;

  draw_y_axis(svg, frame, y_ticks);
  draw_x_axis(svg, frame);
  double y = frame.bottom + 24;
  if (frame.categories > 0) y = std::max(y, frame.bottom + draw_categories(svg, plot, frame));
  draw_inside(svg, plot, frame, pens);
  if (!plot.x.label.empty()) {
    svg.text((frame.left + frame.right) / 2, y + 15,
             fit_text(plot.x.label, kTextSize, frame.right - frame.left, Cut::kEnd),
             {.size = kTextSize, .anchor = "middle", .fill = kSoftInk});
    y += 22;
  }
  y = draw_footnote(svg, plot.footnote, plot.width, y + 4);
  return document_head(plot.title, description(plot), plot.width, std::ceil(y + 8)) + svg.take() +
         "</svg>\n";
}

}  // namespace flashstep::measure
