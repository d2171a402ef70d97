// The pictures of a document: their colours, axes and footnotes.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/report/document/document.h"

namespace flashstep::report {
namespace {

constexpr int kColors = 7;         // of the palette that are told apart
constexpr double kDecades = 1000;  // from here on a linear axis hides the small values

// "naive fp32" is naive: what an implementation computes in is another thing.
std::string implementation_of(const std::string& series) {
  for (const char* dtype : {" fp32", " bf16", " fp16"}) {
    if (series.ends_with(dtype)) return series.substr(0, series.size() - 5);
  }
  return series;
}

// One colour for a name in all pictures. A name that is new gets one that no other of its picture
// has; where two that have the same one meet, the later one is another colour there.
class SeriesColors {
 public:
  void paint(measure::Plot& plot) {
    std::set<int> taken;
    for (measure::Series& series : plot.series) {
      const auto known = colors_.find(implementation_of(series.name));
      if (series.color != measure::kNextColor || known == colors_.end()) continue;
      if (taken.insert(known->second).second) series.color = known->second;
    }
    for (measure::Series& series : plot.series) {
      if (series.color != measure::kNextColor) continue;
      int color = 0;
      while (taken.count(color) > 0) ++color;
      taken.insert(color);
      series.color = color;
      if (color < kColors) colors_.emplace(implementation_of(series.name), color);
    }
  }

 private:
  std::map<std::string, int> colors_;
};

// Its title and what it is of; of one that is kept as it was drawn what its name says.
std::string words_of(const StoredPicture& picture) {
  const std::string title = title_of(picture);
  std::string name = picture.name;
  std::replace(name.begin(), name.end(), '_', ' ');
  const auto* plot = std::get_if<measure::Plot>(&picture.picture);
  if (title.empty() || plot == nullptr || plot->subtitle.empty())
    return title.empty() ? name : title + " (" + name + ")";
  return title + ": " + plot->subtitle;
}

// Lines whose values span decades need a logarithmic axis.
void choose_scale(measure::Plot& plot) {
  double least = INFINITY, most = 0;
  for (const measure::Series& series : plot.series) {
    if (series.kind == measure::Series::Kind::kBars) return;
    for (const double y : series.y) {
      if (y <= 0) return;
      if (std::isfinite(y)) least = std::min(least, y), most = std::max(most, y);
    }
  }
  if (plot.y.scale == measure::Scale::kLinear && most / least > kDecades)
    plot.y = {plot.y.label, measure::Scale::kLog, std::nullopt};
}

}  // namespace

std::vector<std::vector<PictureBlock>> draw_pictures(const std::vector<Result>& results) {
  SeriesColors colors;
  std::vector<std::vector<PictureBlock>> drawn;
  for (const Result& result : results) {
    drawn.emplace_back();
    for (StoredPicture picture : result.pictures) {
      if (auto* plot = std::get_if<measure::Plot>(&picture.picture)) {
        colors.paint(*plot);
        choose_scale(*plot);
      }
      // One that is kept as it was drawn has the footnote that it was drawn with.
      const auto set_footnote = [&](auto& kind) {
        if constexpr (requires { kind.footnote; })
          kind.footnote = str(result.made.command, "; ", origin_of(result.made));
      };
      std::visit(set_footnote, picture.picture);
      drawn.back().push_back({stem_of(result, picture.name), words_of(picture), to_svg(picture)});
    }
  }
  return drawn;
}

}  // namespace flashstep::report
