// Tables for other programs: CSV, JSON.
#include <charconv>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "flashstep/error.h"
#include "flashstep/measure/table.h"

namespace flashstep::measure {
namespace {

using Json = nlohmann::ordered_json;

// The shortest text that reads back as the same number, whatever the locale.
std::string exact(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_cell(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.value())) return csv_field(*text);
  if (const auto* whole = std::get_if<int64_t>(&cell.value())) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&cell.value())) return exact(*number);
  return "";
}

constexpr const char* kStyles[] = {"fixed", "significant", "scientific"};

NumberFormat::Style style_named(const std::string& name) {
  for (int i = 0; i < 3; ++i)
    if (name == kStyles[i]) return static_cast<NumberFormat::Style>(i);
  throw UserError("\"" + name + "\" is no number style");
}

// JSON has no NaN and no infinity: those become {"number": "nan"}.
Json cell_to_json(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.value())) return *text;
  if (const auto* whole = std::get_if<int64_t>(&cell.value())) return *whole;
  if (const auto* number = std::get_if<double>(&cell.value())) {
    if (std::isfinite(*number)) return *number;
    return Json{{"number", exact(*number)}};
  }
  return nullptr;
}

Cell cell_from_json(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  const auto name = json.at("number").get<std::string>();
  const double infinity = std::numeric_limits<double>::infinity();
  if (name == "inf") return infinity;
  if (name == "-inf") return -infinity;
  return std::numeric_limits<double>::quiet_NaN();
}

Column column_from_json(const Json& json) {
  Column column;
  column.name = json.at("name").get<std::string>();
  column.unit = json.at("unit").get<std::string>();
  column.align = json.at("align") == "left" ? Align::kLeft : Align::kRight;
  column.format.style = style_named(json.at("style").get<std::string>());
  column.format.digits = json.at("digits").get<int>();
  return column;
}

}  // namespace

std::string to_csv(const Table& table) {
  std::string text;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    const std::string unit = column.unit.empty() ? "" : " (" + column.unit + ")";
    text += i > 0 ? "," : "";
    text += csv_field(column.name + unit);
  }
  text += "\r\n";
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i > 0 ? "," : "";
      text += csv_cell(row[i]);
    }
    text += "\r\n";
  }
  return text;
}

std::string to_json(const Table& table) {
  Json json;
  json["title"] = table.title;
  json["columns"] = Json::array();
  for (const Column& column : table.columns) {
    json["columns"].push_back({{"name", column.name},
                               {"unit", column.unit},
                               {"align", column.align == Align::kLeft ? "left" : "right"},
                               {"style", kStyles[static_cast<int>(column.format.style)]},
                               {"digits", column.format.digits}});
  }
  json["rows"] = Json::array();
  for (const auto& row : table.rows) {
    Json cells = Json::array();
    for (const Cell& cell : row) cells.push_back(cell_to_json(cell));
    json["rows"].push_back(std::move(cells));
  }
  json["notes"] = table.notes;
  // Bytes that are no UTF-8 become U+FFFD; the alternative is an exception after the measuring.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Table table_from_json(std::string_view text, const std::string& source) {
  try {
    const Json json = Json::parse(text);
    Table table;
    table.title = json.at("title").get<std::string>();
    for (const Json& column : json.at("columns")) table.columns.push_back(column_from_json(column));
    for (const Json& row : json.at("rows")) {
      std::vector<Cell> cells;
      for (const Json& cell : row) cells.push_back(cell_from_json(cell));
      table.add_row(std::move(cells));
    }
    table.notes = json.at("notes").get<std::vector<std::string>>();
    return table;
  } catch (const std::exception& error) {
    throw UserError("[table] expected a table as JSON in " + source + ": " + error.what());
  }
}

}  // namespace flashstep::measure
