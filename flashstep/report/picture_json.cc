#include "flashstep/report/picture_json.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "flashstep/base/json_depth.h"
#include "flashstep/error.h"
#include "flashstep/measure/plot_frame.h"

namespace flashstep::report {
namespace {

using OrderedJson = nlohmann::ordered_json;
using measure::Series;

constexpr const char* kScales[] = {"linear", "log", "log2"};
constexpr const char* kSeriesKinds[] = {"line", "points", "line and points", "bars"};

template <size_t Count>
int index_of(const char* const (&names)[Count], const OrderedJson& json) {
  const auto name = json.get<std::string>();
  for (size_t i = 0; i < Count; ++i) {
    if (name == names[i]) return static_cast<int>(i);
  }
  throw UserError("\"" + name + "\" is unknown");
}

// JSON has neither NaN nor infinity.
OrderedJson number_json(double value) {
  if (std::isnan(value)) return nullptr;
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number_from(const OrderedJson& json) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (json.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (json.is_string()) return json.get<std::string>() == "inf" ? infinity : -infinity;
  return json.get<double>();
}

OrderedJson numbers(const std::vector<double>& values) {
  OrderedJson json = OrderedJson::array();
  for (const double value : values) json.push_back(number_json(value));
  return json;
}

std::vector<double> numbers_from(const OrderedJson& json) {
  std::vector<double> values;
  for (const OrderedJson& value : json) values.push_back(number_from(value));
  return values;
}

OrderedJson axis_to_json(const measure::Axis& axis) {
  OrderedJson json = {{"label", axis.label}, {"scale", kScales[static_cast<int>(axis.scale)]}};
  if (axis.limits) json["limits"] = {axis.limits->low, axis.limits->high};
  return json;
}

measure::Axis axis_from(const OrderedJson& json) {
  measure::Axis axis;
  axis.label = json.at("label").get<std::string>();
  axis.scale = static_cast<measure::Scale>(index_of(kScales, json.at("scale")));
  if (json.contains("limits")) {
    axis.limits =
        measure::Interval{json["limits"].at(0).get<double>(), json["limits"].at(1).get<double>()};
  }
  return axis;
}

OrderedJson series_to_json(const Series& series) {
  return {{"name", series.name},        {"kind", kSeriesKinds[static_cast<int>(series.kind)]},
          {"x", numbers(series.x)},     {"y", numbers(series.y)},
          {"low", numbers(series.low)}, {"high", numbers(series.high)},
          {"labels", series.labels},    {"color", series.color},
          {"faint", series.faint},      {"dashed", series.dashed}};
}

Series series_from(const OrderedJson& json) {
  Series series;
  series.name = json.at("name").get<std::string>();
  series.kind = static_cast<Series::Kind>(index_of(kSeriesKinds, json.at("kind")));
  series.x = numbers_from(json.at("x"));
  series.y = numbers_from(json.at("y"));
  series.low = numbers_from(json.at("low"));
  series.high = numbers_from(json.at("high"));
  series.labels = json.at("labels").get<std::vector<std::string>>();
  series.color = json.at("color").get<int>();
  series.faint = json.at("faint").get<bool>();
  series.dashed = json.at("dashed").get<bool>();
  return series;
}

// What all kinds have.
template <typename Picture>
OrderedJson heading_to_json(const char* kind, const Picture& picture) {
  return {{"picture", kind},
          {"title", picture.title},
          {"subtitle", picture.subtitle},
          {"footnote", picture.footnote},
          {"width", picture.width}};
}

template <typename Picture>
Picture heading_from(const OrderedJson& json) {
  Picture picture;
  picture.title = json.at("title").get<std::string>();
  picture.subtitle = json.at("subtitle").get<std::string>();
  picture.footnote = json.at("footnote").get<std::string>();
  picture.width = json.at("width").get<double>();
  return picture;
}

OrderedJson data_of(const measure::Plot& plot) {
  OrderedJson json = heading_to_json("plot", plot);
  json["height"] = plot.height;
  json["x"] = axis_to_json(plot.x);
  json["y"] = axis_to_json(plot.y);
  json["series"] = OrderedJson::array();
  for (const Series& series : plot.series) json["series"].push_back(series_to_json(series));
  json["references"] = OrderedJson::array();
  for (const auto& line : plot.references) {
    json["references"].push_back(
        {{"value", number_json(line.value)}, {"label", line.label}, {"vertical", line.vertical}});
  }
  json["categories"] = plot.categories;
  return json;
}

measure::Plot plot_from(const OrderedJson& json) {
  auto plot = heading_from<measure::Plot>(json);
  plot.height = json.at("height").get<double>();
  plot.x = axis_from(json.at("x"));
  plot.y = axis_from(json.at("y"));
  for (const OrderedJson& series : json.at("series")) plot.series.push_back(series_from(series));
  for (const OrderedJson& line : json.at("references")) {
    plot.references.push_back({number_from(line.at("value")), line.at("label").get<std::string>(),
                               line.at("vertical").get<bool>()});
  }
  plot.categories = json.at("categories").get<std::vector<std::string>>();
  return plot;
}

OrderedJson data_of(const measure::HeatMap& map) {
  OrderedJson json = heading_to_json("heat map", map);
  json["x_label"] = map.x_label;
  json["y_label"] = map.y_label;
  json["columns"] = map.columns;
  json["rows"] = map.rows;
  json["values"] = numbers(map.values);
  json["labels"] = map.labels;
  return json;
}

measure::HeatMap heat_map_from(const OrderedJson& json) {
  auto map = heading_from<measure::HeatMap>(json);
  map.x_label = json.at("x_label").get<std::string>();
  map.y_label = json.at("y_label").get<std::string>();
  map.columns = json.at("columns").get<std::vector<std::string>>();
  map.rows = json.at("rows").get<std::vector<std::string>>();
  map.values = numbers_from(json.at("values"));
  map.labels = json.at("labels").get<std::vector<std::string>>();
  return map;
}

OrderedJson data_of(const measure::LaneChart& chart) {
  OrderedJson json = heading_to_json("lanes", chart);
  json["groups"] = OrderedJson::array();
  for (const auto& group : chart.groups) {
    OrderedJson lanes = OrderedJson::array();
    for (const auto& lane : group.lanes) {
      std::vector<double> begins, ends;
      for (const auto& span : lane.spans) {
        begins.push_back(span.begin);
        ends.push_back(span.end);
      }
      lanes.push_back({{"name", lane.name},
                       {"label", lane.label},
                       {"color", lane.color},
                       {"begin", numbers(begins)},
                       {"end", numbers(ends)}});
    }
    json["groups"].push_back({{"title", group.title}, {"lanes", std::move(lanes)}});
  }
  return json;
}

measure::Lane lane_from(const OrderedJson& json) {
  measure::Lane lane;
  lane.name = json.at("name").get<std::string>();
  lane.label = json.at("label").get<std::string>();
  lane.color = json.at("color").get<int>();
  const auto begins = numbers_from(json.at("begin")), ends = numbers_from(json.at("end"));
  require(begins.size() == ends.size(), "a lane has ", begins.size(), " begins and ", ends.size(),
          " ends");
  for (size_t i = 0; i < begins.size(); ++i) lane.spans.push_back({begins[i], ends[i]});
  return lane;
}

measure::LaneChart lane_chart_from(const OrderedJson& json) {
  auto chart = heading_from<measure::LaneChart>(json);
  for (const OrderedJson& group : json.at("groups")) {
    measure::LaneGroup lanes;
    lanes.title = group.at("title").get<std::string>();
    for (const OrderedJson& lane : group.at("lanes")) lanes.lanes.push_back(lane_from(lane));
    chart.groups.push_back(std::move(lanes));
  }
  return chart;
}

OrderedJson data_of(const std::string& svg) { return {{"picture", "svg"}, {"svg", svg}}; }

// A kind of picture that is not listed above: kept as it is drawn.
template <typename Picture>
OrderedJson data_of(const Picture& picture) {
  return data_of(std::string(measure::to_svg(picture)));
}

template <typename Named>
std::string dump(const Named& named) {
  OrderedJson json =
      std::visit([](const auto& picture) { return data_of(picture); }, named.picture);
  json["name"] = named.name;
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

StoredPicture::Kind kind_from(const OrderedJson& json) {
  const auto kind = json.at("picture").get<std::string>();
  if (kind == "plot") return plot_from(json);
  if (kind == "heat map") return heat_map_from(json);
  if (kind == "lanes") return lane_chart_from(json);
  require(kind == "svg", "\"", kind, "\" is no kind of picture");
  return json.at("svg").get<std::string>();
}

template <typename Picture>
std::string drawn(const Picture& picture) {
  return measure::to_svg(picture);
}
std::string drawn(const std::string& svg) { return svg; }

}  // namespace

std::string to_json(const NamedPicture& picture) { return dump(picture); }
std::string to_json(const StoredPicture& picture) { return dump(picture); }

StoredPicture picture_from_json(std::string_view text, const std::string& source) {
  try {
    require(json_depth(text) <= kMaxJsonDepth, "it is nested too deeply");
    const OrderedJson json = OrderedJson::parse(text);
    return {json.at("name").get<std::string>(), kind_from(json)};
  } catch (const std::exception& error) {
    throw UserError("[picture] expected a picture as JSON in " + source + ": " +
                    json_complaint(error.what()));
  }
}

std::string to_svg(const StoredPicture& picture) {
  return std::visit([](const auto& kind) { return drawn(kind); }, picture.picture);
}

std::string title_of(const StoredPicture& picture) {
  if (const auto* plot = std::get_if<measure::Plot>(&picture.picture)) return plot->title;
  if (const auto* map = std::get_if<measure::HeatMap>(&picture.picture)) return map->title;
  if (const auto* chart = std::get_if<measure::LaneChart>(&picture.picture)) return chart->title;
  return "";
}

measure::WrittenPlot write_picture(const StoredPicture& picture,
                                   const std::filesystem::path& path_stem) {
  return measure::internal::write_picture(to_svg(picture), path_stem);
}

}  // namespace flashstep::report
