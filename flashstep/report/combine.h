// What answers are put together of: how numbers, extremes, comparisons, trends and shares of the
// rows of a table are said. Clocks and neighbours move a time by 2 %: here, once, is what follows
// from that.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/report/result.h"

namespace flashstep::tools {

// What an answer is computed from: rows of the tables of the results, asked for by their columns.

using Columns = std::vector<std::string>;
using Cells = std::vector<std::pair<std::string, std::string>>;  // column, what it reads

std::optional<size_t> column_named(const measure::Table& table, const std::string& name);

struct TableRow {
  const Result* result = nullptr;
  const measure::Table* table = nullptr;  // null: there is no such row
  size_t index = 0;

  explicit operator bool() const { return table != nullptr; }
  measure::Cell cell(const std::string& column) const;  // empty without such a column
  // NaN where there is no number: an empty cell, "OOM", a column or a row that is not there.
  double number(const std::string& column) const;
  // As it is displayed, empty cells as "".
  std::string text(const std::string& column) const;
};

// Rows of one kind of table, from one or several results.
struct TableRows : std::vector<TableRow> {
  TableRow front() const { return empty() ? TableRow() : (*this)[0]; }
  TableRow back() const { return empty() ? TableRow() : (*this)[size() - 1]; }

  template <typename Wanted>
  TableRows if_(const Wanted& wanted) const {
    TableRows found;
    std::ranges::copy_if(*this, std::back_inserter(found), wanted);
    return found;
  }
  TableRows where(const Cells& cells) const;     // whose cells read so
  TableRows with(const Columns& columns) const;  // that have numbers in all of them
  TableRows once(const Columns& columns) const;  // the first of those that read the same there
  TableRow first(const Cells& cells) const { return where(cells).front(); }
  TableRows like(const TableRow& row, const Columns& columns) const;  // that read there as it does
  // Those that read the same there, in the order of the first of each.
  std::vector<TableRows> by(const Columns& columns) const;
  // What stands in a column, each once, in the order of the rows; empty cells left out.
  std::vector<std::string> distinct(const std::string& column) const;
  std::vector<double> numbers(const std::string& column) const;  // NaN left out
  double sum(const std::string& column) const;                   // of those
  // Of those that have a number; of equal ones the first.
  TableRow most(const std::string& column, double sign = 1) const;
  TableRow least(const std::string& column) const { return most(column, -1); }
};

// The results that a question may be answered from. They must outlive it.
class Evidence {
 public:
  // `years` whose presets are wanted, first choice first; then come the other years', the latest
  // first, and the preset quick's. What is the same for every year comes before all of them.
  Evidence(const std::vector<Result>& results, std::vector<std::string> years);

  // The tables of this name (report/answers.json), one a result, joined: of all results of the
  // first preset that has one (a preset measures each context by itself). Remembered as used.
  TableRows rows(const std::string& name) const;
  // All of them, each by itself; whoever takes one says so with use().
  std::vector<TableRows> tables(const std::string& name) const;
  void use(const TableRows& rows) const;

  // The results whose tables were used.
  const std::vector<const Result*>& used() const { return used_; }

 private:
  int rank_of(const Result& result) const;  // small numbers first

  std::vector<std::string> years_;
  std::vector<const Result*> results_;
  mutable std::vector<const Result*> used_;
};

// "2025" of a measurement of that year's preset ("ddp_2025"); "" of others.
std::string year_of(const std::string& measurement);

using SentenceWords = std::map<std::string, std::string>;

// What the forms of an answer (report/answers.json) are filled with.
struct Facts {
  SentenceWords words = {};
  std::map<std::string, TableRow> rows = {};  // the one without a name: ""
  TableRows shown = {};                       // in the table
  measure::Table table = {};                  // or a table of the answer's own
  std::vector<Facts> cases = {};              // of the forms that are said of each
  std::vector<std::string> picture = {};      // more words of its name

  void add_case(Facts one, size_t most) {
    if (cases.size() < most) cases.push_back(std::move(one));
  }
};

// One to three sentences, and one small table or one picture below them.
struct Finding {
  std::vector<std::string> sentences = {};  // none: the evidence is not there
  measure::Table table = {};                // without columns: none
  // The last picture of the results that were used whose name holds all of these: {"timeline",
  // "_step_"}. Empty: none.
  std::vector<std::string> picture = {};
  std::vector<std::string> derivation = {};  // formulas, as the table's command derives them

  explicit operator bool() const { return !sentences.empty(); }
};

using AnswerFunction = std::function<Facts(const Evidence&)>;
using Answers = std::map<std::string, AnswerFunction>;  // by the names that handouts use

const Answers& answers();
// Their parts (answers_*.cc).
Answers account_answers();
Answers kernel_answers();
Answers memory_answers();
Answers parallel_answers();
Answers profile_answers();
Answers step_answers();

// What a table is of: "xl, AdamW" of the title "State and traffic of one rank: xl, AdamW".
std::string subject_of(const TableRows& rows);

// ---- Numbers

std::string three_digits(double value);                        // "12.3", "0.0045", "1,230"
std::string percent(double share, int digits = 0);             // 0.123 -> "12 %"
std::string milliseconds(double ms);                           // "12.3 ms"
std::string memory_words(double mebibytes);                    // "2.00 GiB", "512 MiB"
std::string count_of(size_t count, const std::string& thing);  // "1 row", "3 rows"
// "1.93 to 2.10", or one of them where they read the same.
std::string span_of(const std::vector<double>& values, int digits);
// "1.93 (small) to 2.10 (xl)", of numbers and how they are said; one by itself.
std::string span_of(std::vector<std::pair<double, std::string>> said);

// ---- Sentences (answer.cc)

// A form with facts in its braces:
//   {name}          of the words, which come before columns
//   {column}        of the row without a name, as the table displays it; {row.column} of another
//   {column|ms}     "12.3 ms"
//   {column|MiB}    of a number in MiB, |GiB of one in GiB: "12.7 GiB", "512 MiB"
//   {column|3}      three digits; |.2: two digits behind the point; |%: of a number in percent;
//                   |share, |share.1: of a share; |speed: speed_words()
//   {a - b|3}, {a : b|3}    a difference or a ratio of columns, as a number
//   {step from b.step}      how a number changed from another: "7.9 % shorter"
//   {@pass}, {@pass b}      the case of a row, by a form of its own
//   {name?no|yes}           the word is a number from 0 on and chooses; texts may have braces again
//   {a ~ b?less|same|more}  how two numbers compare
// What stands in [brackets] is left out where a field in it is empty. "": a field outside is.
std::string say(const std::string& form, const Facts& facts);
std::string say(const std::string& form, const TableRow& row, const SentenceWords& words = {});
// Which text is chosen.
std::string which(bool yes);
std::string which_order(int order);  // of three, by compare_measured()

// Which tables an answer reads: of a section, with these columns.
struct AnswerTable {
  std::string section, title;  // how its title begins
  Columns columns, with;       // of `with`, rows that have numbers there
};
const AnswerTable& answer_table(const std::string& name);

// The answer of this name: its forms, those that begin with "*" of each case, its table and
// picture.
Finding finding_of(const std::string& answer, const Facts& facts);

// ---- Comparing

// -1, 0 or 1: `a` is less than, the same as (within 2 %), or more than `b`.
int compare_measured(double a, double b);
// "1.25 times as fast as", "only 0.80 times as fast as", "as fast as" (within 2 %).
std::string speed_words(double ratio);
// "7.9 % shorter", "3.0 % longer", "the same within 2 %": of a time or a size that was `from`.
std::string change_words(double from, double to, const char* less = "shorter",
                         const char* more = "longer");

struct RowPair {
  TableRow a, b;
  std::map<std::string, TableRow> rows() const { return {{"", a}, {"b", b}}; }  // of Facts
};
struct RowPairs : std::vector<RowPair> {
  RowPair last() const { return empty() ? RowPair() : back(); }
};
// Each row of `a` with the first one of `b` that is of the same case.
RowPairs pairs(const TableRows& a, const TableRows& b, const Columns& same_case);
// Of rows whose column reads `a`, with those where it reads `b`.
RowPairs pairs(const TableRows& rows, const std::string& column, const std::string& a,
               const std::string& b, const Columns& same_case);

// How cases compare, in words.
class Tally {
 public:
  Tally() = default;
  Tally(const RowPairs& pairs, const std::string& column);
  void add(double a, double b);
  // "shorter", "shorter in all 3 cases", "shorter in 2 of 3 cases, the same in 1". The most
  // frequent comes first.
  std::string words(const char* less, const char* same, const char* more) const;
  size_t less() const { return less_; }
  size_t more() const { return more_; }
  size_t cases() const { return less_ + same_ + more_; }

 private:
  size_t less_ = 0, same_ = 0, more_ = 0;
};

// The number of b over that of a: how many times as fast a is, where `column` is a time. What is
// not known or not positive is left out.
std::vector<double> ratios(const RowPairs& pairs, const std::string& column);
// "1.25 times as fast as B (geometric mean of 40 cases, 0.71 to 2.60)".
std::string speeds(const std::vector<double>& ratios, const std::string& b);

// The geometric mean of those ratios; NaN without any.
double speed(const RowPairs& pairs, const std::string& column);

// ---- Extremes

// "28.7 ms (small) to 642 ms (2.7B)": what a form says of the rows with the least and the most of a
// column.
std::string extremes(const TableRows& rows, const std::string& column, const std::string& form);

// ---- Against a formula

// "as the formula says in all 6 cases", "up to 3.8 % from the formula in ...", or that and in how
// many it is NOT what the formula says: further than 10 % from it.
std::string against_formula(const TableRows& rows, const std::string& measured,
                            const std::string& formula);

// ---- Tables

// Where one of the columns in MiB reaches a GiB, all of them become columns in GiB: they are
// compared.
void say_in_gibibytes(measure::Table& table);
// These columns of these rows, at most `most` of them.
measure::Table list(const TableRows& rows, const Columns& columns, size_t most);

}  // namespace flashstep::tools
