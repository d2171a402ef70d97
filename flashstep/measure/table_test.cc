#include "flashstep/measure/table.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep::measure {
namespace {

Table small_table() {
  Table table;
  table.title = "Step";
  table.columns = {text_column("size"), integer_column("context"), number_column("time", "ms", 2),
                   number_column("share", "%", 1)};
  table.add_row({"small", 128, 12.345, 41.25});
  table.add_row({"xl", 1024, "OOM", Cell()});
  table.notes = {"ours is 1.20x the peer"};
  return table;
}

TEST(Table, Text) {
  EXPECT_EQ(to_text(small_table()),
            "Step\n"
            "size   context   time  share\n"
            "                   ms      %\n"
            "-----  -------  -----  -----\n"
            "small      128  12.35   41.2\n"
            "xl       1,024    OOM      -\n"
            "ours is 1.20x the peer\n");
}

TEST(Table, TextCountsCodePointsAndStaysOnItsLine) {
  Table table;
  table.columns = {text_column("µ×é"), integer_column("n")};
  table.add_row({"two\nlines", 1});
  table.add_row({"日本", 22});
  EXPECT_EQ(to_text(table),
            "µ×é         n\n"
            "---------  --\n"
            "two lines   1\n"
            "日本       22\n");
}

TEST(Table, MarkdownEscapesWhatWouldBreakIt) {
  Table table = small_table();
  table.rows[0][0] = "a|b_c";
  EXPECT_EQ(to_markdown(table),
            "**Step**\n\n"
            "| size    | context | time (ms) | share (%) |\n"
            "| ------- | ------: | --------: | --------: |\n"
            "| a\\|b\\_c |     128 |     12.35 |      41.2 |\n"
            "| xl      |   1,024 |       OOM |         - |\n"
            "\nours is 1.20x the peer\n");
}

TEST(Table, CsvIsExactAndQuoted) {
  Table table = small_table();
  table.rows[0][0] = "a \"b\", c";
  table.rows[0][2] = 0.1;
  EXPECT_EQ(to_csv(table),
            "size,context,time (ms),share (%)\r\n"
            "\"a \"\"b\"\", c\",128,0.1,41.25\r\n"
            "xl,1024,OOM,\r\n");
}

TEST(Table, JsonThereAndBack) {
  Table table = small_table();
  table.columns[2].format = {NumberFormat::Style::kSignificant, 4};
  table.add_row({"nan", -5, INFINITY, -INFINITY});
  table.add_row({"1e300 \"quoted\"\n", int64_t{1} << 62, 2.0, 0.1 + 0.2});
  const Table back = table_from_json(to_json(table), "test");
  EXPECT_EQ(to_json(back), to_json(table));
  EXPECT_EQ(back.rows, table.rows);  // 2.0 comes back as a number, not as the whole number 2
  EXPECT_EQ(to_text(back), to_text(table));

  table.rows = {{"", 0, std::nan(""), Cell()}};
  const Cell nan = table_from_json(to_json(table), "test").rows[0][2];
  ASSERT_TRUE(std::holds_alternative<double>(nan.value()));
  EXPECT_TRUE(std::isnan(std::get<double>(nan.value())));
}

TEST(Table, DamagedJsonIsAUserError) {
  const std::string json = to_json(small_table());
  EXPECT_THROW(table_from_json("", "t"), UserError);
  EXPECT_THROW(table_from_json(json.substr(0, json.size() / 2), "t"), UserError);
  EXPECT_THROW(table_from_json("{\"title\": 3}", "t"), UserError);
  EXPECT_THROW(table_from_json("[]", "t"), UserError);
  EXPECT_THROW(table_from_json(R"({"title":"","columns":[],"rows":[[1]],"notes":[]})", "t"),
               UserError);
  EXPECT_THROW(table_from_json(R"({"title":"","columns":[],"rows":[[{"a":1}]],"notes":[]})", "t"),
               UserError);
}

TEST(Table, JsonSurvivesBytesThatAreNoUtf8) {
  Table table = small_table();
  table.rows[0][0] = "bad \xff";
  EXPECT_EQ(std::get<std::string>(table_from_json(to_json(table), "t").rows[0][0].value()),
            "bad \xEF\xBF\xBD");
}

TEST(Table, NoRowsAndNoColumns) {
  Table table;
  EXPECT_EQ(to_csv(table), "\r\n");
  EXPECT_EQ(to_text(table), "\n\n");
  EXPECT_EQ(table_from_json(to_json(table), "t").columns.size(), 0U);
  EXPECT_THROW(table.add_row({1}), UserError);
}

TEST(Display, NumberFormats) {
  using Style = NumberFormat::Style;
  const auto fixed2 = [](double v) { return display(v, {Style::kFixed, 2}); };
  EXPECT_EQ(fixed2(1234567.891), "1,234,567.89");
  EXPECT_EQ(fixed2(-1234.5), "-1,234.50");
  EXPECT_EQ(fixed2(-999.999), "-1,000.00");
  EXPECT_EQ(fixed2(1e300), "1.00e+300");
  EXPECT_EQ(fixed2(std::nan("")), "nan");
  EXPECT_EQ(fixed2(-INFINITY), "-inf");
  const auto three = [](double v) { return display(v, {Style::kSignificant, 3}); };
  EXPECT_EQ(three(0), "0");
  EXPECT_EQ(three(9.996), "10.0");
  EXPECT_EQ(three(0.00012345), "0.000123");
  EXPECT_EQ(three(1234.6), "1,230");
  EXPECT_EQ(three(-1.0), "-1.00");
  EXPECT_EQ(three(1.5e-9), "1.50e-09");
  EXPECT_EQ(display(12345.678, {Style::kScientific, 1}), "1.2e+04");
  EXPECT_EQ(display(1234567, {}), "1,234,567");
  EXPECT_EQ(display(Cell(), {}), "-");
}

}  // namespace
}  // namespace flashstep::measure
