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

static double number_named(const std::string& name) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (name == "inf") return infinity;
  if (name == "-inf") return -infinity;
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  throw UserError("\"" + name + "\" is no number");
}

// JSON has no NaN and no infinity: those become {"number": "nan"}.
void to_json(Json& json, const Cell& cell) {
  const auto* number = std::get_if<double>(&cell.value());
  if (number != nullptr && !std::isfinite(*number))
    json = {{"number", exact(*number)}};
  else if (number != nullptr)
    json = *number;
  else if (const auto* whole = std::get_if<int64_t>(&cell.value()))
    json = *whole;
  else if (const auto* text = std::get_if<std::string>(&cell.value()))
    json = *text;
  else
    json = nullptr;
}

void from_json(const Json& json, Cell& cell) {
  if (json.is_null())
    cell = {};
  else if (json.is_string())
    cell = json.get<std::string>();
  else if (json.is_number_integer())
    cell = json.get<int64_t>();
  else if (json.is_number())
    cell = json.get<double>();
  else
    cell = number_named(json.at("number"));
}

static void to_json(Json& json, const Column& column) {
  json = {{"name", column.name},
          {"unit", column.unit},
          {"align", column.align == Align::kLeft ? "left" : "right"},
          {"style", kStyles[static_cast<int>(column.format.style)]},
          {"digits", column.format.digits}};
}

static void from_json(const Json& json, Column& column) {
  column.name = json.at("name");
  column.unit = json.at("unit");
  column.align = json.at("align") == "left" ? Align::kLeft : Align::kRight;
  column.format.style = style_named(json.at("style"));
  column.format.digits = json.at("digits");
}

void to_json(Json& json, const Table& table) {
  json = {{"title", table.title},
          {"columns", table.columns},
          {"rows", table.rows},
          {"notes", table.notes}};
}

void from_json(const Json& json, Table& table) {
  table.title = json.at("title");
  json.at("columns").get_to(table.columns);
  for (const Json& row : json.at("rows")) table.add_row(row.get<std::vector<Cell>>());
  json.at("notes").get_to(table.notes);
}

std::string to_json(const Table& table) {
  // Bytes that are no UTF-8 become U+FFFD; the alternative is an exception after the measuring.
  return Json(table).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Table table_from_json(std::string_view text, const std::string& source) {
  try {
    return Json::parse(text).get<Table>();
  } catch (const std::exception& error) {
    throw UserError("[table] expected a table as JSON in " + source + ": " + error.what());
  }
}

}  // namespace flashstep::measure
