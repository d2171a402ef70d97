// The one table type: every command fills one and prints it as the reader likes.
//
//   Table table;
//   table.title = "Training step";
//   table.columns = {text_column("size"), number_column("time", "ms", 2), number_column("MFU", "%",
//   1)}; table.add_row({"small", 12.345, 41.2}); table.add_row({"xl", "OOM", Cell()}); std::cout <<
//   to_text(table);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace flashstep::measure {

struct NumberFormat {
  enum class Style {
    kFixed,        // digits after the point: 12.35
    kSignificant,  // significant digits, without an exponent where that stays short: 0.00123, 1,230
    kScientific,   // digits after the point: 1.23e-05
  };
  Style style = Style::kFixed;
  int digits = 2;
};

enum class Align { kLeft, kRight };

struct Column {
  std::string name;
  std::string unit;  // "ms", "%", ...; empty: none
  Align align = Align::kRight;
  NumberFormat format = {};
};
Column text_column(std::string name);
Column integer_column(std::string name, std::string unit = "");
Column number_column(std::string name, std::string unit, int digits);

// Empty (not measured), a whole number, a number, or text such as "OOM" that may stand in any
// column.
class Cell {
 public:
  using Value = std::variant<std::monostate, int64_t, double, std::string>;
  // Not inline: GCC 12 takes the move of a number for a read of text that was never there.
  Cell() noexcept;
  Cell(const Cell&);
  Cell(Cell&&) noexcept;
  Cell& operator=(const Cell&);
  Cell& operator=(Cell&&) noexcept;
  ~Cell();
  Cell(int value) : value_(int64_t{value}) {}
  Cell(long value) : value_(int64_t{value}) {}
  Cell(long long value) : value_(int64_t{value}) {}
  Cell(unsigned long value) : value_(static_cast<int64_t>(value)) {}
  Cell(double value) : value_(value) {}
  Cell(std::string value) : value_(std::move(value)) {}
  Cell(std::string_view value) : value_(std::string(value)) {}
  Cell(const char* value) : value_(std::string(value)) {}
  const Value& value() const { return value_; }
  double number() const;  // NaN where it is none
  bool is_text() const { return std::holds_alternative<std::string>(value_); }
  bool operator==(const Cell&) const = default;  // NaN differs from itself, as everywhere
  auto operator<=>(const Cell&) const = default;

 private:
  Value value_;
};

struct Table {
  std::string title;
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  std::vector<std::string>
      notes;  // sentences below the table: the verdict, the machine, the command

  // UserError unless there is a cell for every column.
  void add_row(std::vector<Cell> cells);
};

// The cell as people read it: numbers in the column's format with commas between thousands, "-" for
// an empty cell, "nan" and "inf" for what they are.
std::string display(const Cell& cell, const NumberFormat& format);

// For a terminal: columns padded to one width, a row of units (where there are any), a rule; notes
// broken to `note_columns` (0: not at all).
std::string to_text(const Table& table, size_t note_columns = 0);

// GitHub's Markdown, also aligned for who reads the source; units stand in the heads.
std::string to_markdown(const Table& table);

// RFC 4180: CRLF, quotes where needed. The head is "name (unit)"; numbers are exact and
// unformatted; the title and the notes are left out.
std::string to_csv(const Table& table);

// All of the table, with exact numbers; table_from_json gives an equal table back. `source` names
// the text in the UserError for what is no such JSON.
std::string to_json(const Table& table);
Table table_from_json(std::string_view json, const std::string& source);
// The same form for nlohmann's conversions, where tables and cells stand in larger documents.
void to_json(nlohmann::ordered_json& json, const Cell& cell);
void from_json(const nlohmann::ordered_json& json, Cell& cell);
void to_json(nlohmann::ordered_json& json, const Table& table);
void from_json(const nlohmann::ordered_json& json, Table& table);

}  // namespace flashstep::measure
