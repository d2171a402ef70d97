#include "flashstep/bench/picture_json.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "flashstep/base/json_depth.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;
using measure::Series;

constexpr const char* kScales[] = {"linear", "log", "log2"};
constexpr const char* kSeriesKinds[] = {"line", "points", "line and points", "bars"};
const auto& names_of(measure::Scale) { return kScales; }
const auto& names_of(Series::Kind) { return kSeriesKinds; }

template <typename T, typename Kind>
concept Is = std::is_same_v<std::remove_const_t<T>, Kind>;

// ---- The fields of each kind, in the order of the file, for both ways

void describe(auto& f, Is<measure::Axis> auto& axis) {
  f("label", axis.label), f("scale", axis.scale);
}
void describe(auto& f, Is<Series> auto& s) {
  f("name", s.name), f("kind", s.kind), f("x", s.x), f("y", s.y);
  f.former("low"), f.former("high");
  f("labels", s.labels), f("color", s.color), f("faint", s.faint), f("dashed", s.dashed);
}
void describe(auto& f, Is<measure::Reference> auto& line) {
  f("value", line.value), f("label", line.label), f("vertical", line.vertical);
}
void describe(auto& f, Is<measure::Lane> auto& lane) {
  f("name", lane.name), f("label", lane.label), f("color", lane.color), f.spans(lane.spans);
}
void describe(auto& f, Is<measure::LaneGroup> auto& group) {
  f("title", group.title), f("lanes", group.lanes);
}
void describe_heading(auto& f, auto& picture) {
  f("title", picture.title), f("subtitle", picture.subtitle), f("footnote", picture.footnote);
  f("width", picture.width);
}
void describe(auto& f, Is<measure::Plot> auto& plot) {
  describe_heading(f, plot);
  f("height", plot.height), f("x", plot.x), f("y", plot.y), f("series", plot.series);
  f("references", plot.references), f("categories", plot.categories);
}
void describe(auto& f, Is<measure::HeatMap> auto& map) {
  describe_heading(f, map);
  f("x_label", map.x_label), f("y_label", map.y_label), f("columns", map.columns);
  f("rows", map.rows), f("values", map.values), f.former("labels");
}
void describe(auto& f, Is<measure::LaneChart> auto& chart) {
  describe_heading(f, chart);
  f("groups", chart.groups);
}

// ---- Writing

OrderedJson json_of(const auto& value);

struct Writer {
  OrderedJson json;

  void operator()(const char* name, const auto& value) { json[name] = json_of(value); }
  // A list that always was empty: older programs look for it.
  void former(const char* name) { json[name] = OrderedJson::array(); }
  void spans(const std::vector<measure::Span>& spans) {
    std::vector<double> begins, ends;
    for (const auto& span : spans) begins.push_back(span.begin), ends.push_back(span.end);
    (*this)("begin", begins);
    (*this)("end", ends);
  }
};

OrderedJson json_of(const auto& value) {
  using Value = std::remove_cvref_t<decltype(value)>;
  if constexpr (std::is_enum_v<Value>) {
    return names_of(value)[static_cast<size_t>(value)];
  } else if constexpr (std::is_same_v<Value, double>) {  // JSON has neither NaN nor infinity
    if (std::isnan(value)) return nullptr;
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  } else if constexpr (requires(Writer w) { describe(w, value); }) {
    Writer writer;
    describe(writer, value);
    return writer.json;
  } else if constexpr (std::is_constructible_v<OrderedJson, Value> &&
                       !std::is_same_v<Value, std::vector<double>>) {
    return value;
  } else {
    OrderedJson json = OrderedJson::array();
    for (const auto& one : value) json.push_back(json_of(one));
    return json;
  }
}

// ---- Reading

void read(const OrderedJson& json, auto& value);

struct Reader {
  const OrderedJson& json;

  void operator()(const char* name, auto& value) { read(json.at(name), value); }
  void former(const char*) {}
  void spans(std::vector<measure::Span>& spans) {
    std::vector<double> begins, ends;
    (*this)("begin", begins);
    (*this)("end", ends);
    require(begins.size() == ends.size(), "a lane has ", begins.size(), " begins and ", ends.size(),
            " ends");
    for (size_t i = 0; i < begins.size(); ++i) spans.push_back({begins[i], ends[i]});
  }
};

void read(const OrderedJson& json, auto& value) {
  using Value = std::remove_cvref_t<decltype(value)>;
  if constexpr (std::is_enum_v<Value>) {
    const auto& names = names_of(value);
    const auto name = json.get<std::string>();
    const auto found = std::find(std::begin(names), std::end(names), name);
    require(found != std::end(names), "\"", name, "\" is unknown");
    value = static_cast<Value>(found - std::begin(names));
  } else if constexpr (std::is_same_v<Value, double>) {
    require(json.is_number() || json.is_null() || json == "inf" || json == "-inf",
            "expected a number, got ", json.dump());
    value = json.is_number() ? json.get<double>()
            : json.is_null() ? NAN
            : json == "inf"  ? INFINITY
                             : -INFINITY;
  } else if constexpr (requires(Reader r) { describe(r, value); }) {
    Reader reader{json};
    describe(reader, value);
  } else if constexpr (requires { value.emplace_back(); } && !std::is_same_v<Value, std::string>) {
    for (const OrderedJson& one : json) read(one, value.emplace_back());
  } else {
    json.get_to(value);
  }
}

// ---- Kinds of pictures: what is not listed is kept as it is drawn

const char* kind_of(const measure::Plot&) { return "plot"; }
const char* kind_of(const measure::HeatMap&) { return "heat map"; }
const char* kind_of(const measure::LaneChart&) { return "lanes"; }

std::string drawn(const std::string& svg) { return svg; }
std::string drawn(const auto& picture) { return measure::to_svg(picture); }

OrderedJson data_of(const auto& picture) {
  if constexpr (requires { kind_of(picture); }) {
    Writer writer;
    writer("picture", std::string(kind_of(picture)));
    describe(writer, picture);
    return writer.json;
  } else {
    return {{"picture", "svg"}, {"svg", drawn(picture)}};
  }
}

template <typename Picture>
Picture picture_from(const OrderedJson& json) {
  Picture picture;
  read(json, picture);
  return picture;
}

decltype(NamedPicture::picture) kind_from(const OrderedJson& json) {
  const auto kind = json.at("picture").get<std::string>();
  if (kind == "plot") return picture_from<measure::Plot>(json);
  if (kind == "heat map") return picture_from<measure::HeatMap>(json);
  if (kind == "lanes") return picture_from<measure::LaneChart>(json);
  require(kind == "svg", "\"", kind, "\" is no kind of picture");
  return json.at("svg").get<std::string>();
}

std::string caption(const auto& picture) {
  return picture.title + (picture.subtitle.empty() ? "" : ": " + picture.subtitle);
}
std::string caption(const std::string& svg) {
  const std::string open = "<title>";
  const size_t begin = svg.find(open), end = svg.find("</title>");
  return end == std::string::npos ? "" : svg.substr(begin + open.size(), end - begin - open.size());
}

}  // namespace

std::string to_json(const NamedPicture& named) {
  OrderedJson json =
      std::visit([](const auto& picture) { return data_of(picture); }, named.picture);
  json["name"] = named.name;
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

NamedPicture picture_from_json(std::string_view text, const std::string& source) {
  try {
    require(json_depth(text) <= kMaxJsonDepth, "it is nested too deeply");
    const OrderedJson json = OrderedJson::parse(text);
    return {json.at("name").get<std::string>(), kind_from(json)};
  } catch (const std::exception& error) {
    throw UserError("[picture] expected a picture as JSON in " + source + ": " +
                    json_complaint(error.what()));
  }
}

std::string to_svg(const NamedPicture& picture) {
  return std::visit([](const auto& kind) { return drawn(kind); }, picture.picture);
}

std::string caption_of(const NamedPicture& picture) {
  const std::string said =
      std::visit([](const auto& kind) { return caption(kind); }, picture.picture);
  return said.empty() ? picture.name : said;
}

void set_footnote(NamedPicture& picture, const std::string& footnote) {
  const auto set = [&](auto& kind) {
    if constexpr (requires { kind.footnote; }) kind.footnote = footnote;
  };
  std::visit(set, picture.picture);
}

}  // namespace flashstep::tools
