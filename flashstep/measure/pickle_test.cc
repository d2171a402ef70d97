#include "flashstep/measure/pickle.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep::measure {
namespace {

const int64_t kNumbers[] = {0,
                            1,
                            255,
                            256,
                            65535,
                            65536,
                            -1,
                            -128,
                            INT32_MAX,
                            INT32_MIN,
                            int64_t{1} << 31,
                            -(int64_t{1} << 40),
                            std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()};

std::string small_pickle() {
  PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("numbers");
  pickle.begin_list();
  for (const int64_t number : kNumbers) pickle.integer(number);
  pickle.end();
  pickle.text("again");
  pickle.begin_list();
  pickle.begin_list();
  pickle.text("numbers");  // equal texts are one
  pickle.boolean(true);
  pickle.end();
  const uint32_t list = pickle.remember();
  pickle.repeat(list);
  pickle.end();
  pickle.end();
  return pickle.take();
}

TEST(Pickle, ReadsWhatWasWritten) {
  const std::string bytes = small_pickle();
  const Pickle pickle(bytes, "test");
  const auto& numbers = pickle.list(pickle.at(pickle.root(), "numbers"));
  ASSERT_EQ(numbers.size(), std::size(kNumbers));
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(Pickle::integer(numbers[i]), kNumbers[i]);
  const auto& again = pickle.list(pickle.at(pickle.root(), "again"));
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].index, again[1].index) << "the same object twice";
  EXPECT_EQ(pickle.text(pickle.list(again[0])[0]), "numbers");
  EXPECT_EQ(pickle.at(pickle.root(), "missing").type, PickleValue::Type::kNone);
}

TEST(Pickle, ListsLongerThanABatch) {
  PickleWriter pickle;
  pickle.begin_list();
  for (int i = 0; i < 4321; ++i) pickle.integer(i);
  pickle.end();
  const std::string bytes = pickle.take();
  const Pickle read(bytes, "test");
  const auto& list = read.list(read.root());
  ASSERT_EQ(list.size(), 4321u);
  for (int i = 0; i < 4321; ++i) ASSERT_EQ(Pickle::integer(list[static_cast<size_t>(i)]), i);
}

TEST(Pickle, BatchesAreAThousand) {
  PickleWriter pickle;
  pickle.begin_list();
  for (int i = 0; i < 2001; ++i) pickle.boolean(true);
  pickle.end();
  const std::string thousand(1000, '\x88');
  EXPECT_EQ(pickle.take(), "\x80\x02](" + thousand + "e(" + thousand +
                               "e(\x88"
                               "e.");
}

// pickle.dumps({"a": [1, (2, 3), None], "b": 2.5}, protocol=4) of CPython 3.11.
TEST(Pickle, ReadsPythonsOwn) {
  const std::string bytes(
      "\x80\x04\x95#\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
      "a\x94]\x94(K\x01K\x02K\x03\x86\x94Ne\x8c\x01"
      "b\x94G@\x04\x00\x00\x00\x00\x00\x00u.",
      46);
  const Pickle pickle(bytes, "test");
  const auto& list = pickle.list(pickle.at(pickle.root(), "a"));
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(Pickle::integer(pickle.list(list[1])[1]), 3);
  EXPECT_EQ(pickle.at(pickle.root(), "b").real, 2.5);
}

TEST(Pickle, AbsorbsDicts) {
  PickleWriter pickle;
  pickle.begin_list();
  for (int i = 0; i < 3; ++i) {
    pickle.begin_dict();
    pickle.text(i == 1 ? "other" : "wanted");
    pickle.integer(i);
    pickle.end();
  }
  pickle.end();
  const std::string bytes = pickle.take();
  std::vector<int64_t> taken;
  const Pickle read(bytes, "test",
                    [&](const Pickle& p, const Pickle::Items& items) -> std::optional<uint32_t> {
                      if (p.text(items[0].first) != "wanted") return std::nullopt;
                      taken.push_back(Pickle::integer(items[0].second));
                      return static_cast<uint32_t>(taken.size() - 1);
                    });
  const auto& list = read.list(read.root());
  EXPECT_EQ(taken, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(read.record(list[2]), 1u);
  EXPECT_FALSE(read.record(list[1]).has_value());
  EXPECT_EQ(Pickle::integer(read.at(list[1], "other")), 1);
}

TEST(Pickle, DamagedBytesAreRefused) {
  const std::string whole = small_pickle();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(Pickle(std::string_view(whole).substr(0, length), "cut"), UserError) << length;
  }
  // One byte changed: refused or read as something else, but never out of bounds.
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\x00', '\xff', 'u', 'e', '(', 'h', 'j', 'r', '\x8a', '.'}) {
      std::string damaged = whole;
      damaged[at] = byte;
      try {
        const Pickle pickle(damaged, "damaged");
        pickle.at(pickle.root(), "numbers");
      } catch (const UserError&) {
      }
    }
  }
  EXPECT_THROW(Pickle("\x80\x02"
                      "cos\nsystem\n.",
                      "code"),
               UserError)
      << "nothing is executed";
}

TEST(Pickle, WritersMistakesAreRefused) {
  PickleWriter open;
  open.begin_list();
  EXPECT_THROW(open.take(), UserError);
  PickleWriter odd;
  odd.begin_dict();
  odd.text("key");
  EXPECT_THROW(odd.end(), UserError);
}

}  // namespace
}  // namespace flashstep::measure
