// Python's pickle format (protocol 2 and up), as far as plain data need it: None, booleans, whole
// and real numbers, text, lists (tuples are read as such) and dicts. Nothing is executed.
// Opcodes: Python's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace flashstep::measure {

// Writes one object, in protocol 2 and with those opcodes that pytorch.org/memory_viz reads:
//
//   PickleWriter pickle;
//   pickle.begin_dict();
//   pickle.text("sizes");
//   pickle.begin_list();  pickle.integer(1);  pickle.end();
//   pickle.end();
//   write_file(path, pickle.take());
class PickleWriter {
 public:
  PickleWriter();

  void boolean(bool value);
  void integer(int64_t value);
  void text(std::string_view value);  // equal texts are written once
  void begin_list();
  void begin_dict();  // then keys and values in turn
  void end();         // of the list or dict that was begun last

  // Writes again, as the same object, what ended last when remember() was called.
  uint32_t remember();
  void repeat(uint32_t remembered);

  std::string take();  // the whole pickle

 private:
  struct Container {
    bool is_dict;
    int64_t values = 0;  // since the last batch
  };
  void begin_value();  // before each value
  void number(uint64_t value, int bytes);

  std::string bytes_;
  std::vector<Container> open_;
  std::unordered_map<std::string, uint32_t> texts_;
  uint32_t memo_ = 0;  // how many objects are remembered
};

struct PickleValue {
  enum class Type : uint8_t { kNone, kBoolean, kInteger, kReal, kText, kList, kDict };
  Type type = Type::kNone;
  union {
    int64_t integer = 0;  // also of a boolean
    double real;
    uint64_t index;  // of a text, list or dict: for Pickle's functions
  };
};

// A pickle as it was read. Its texts point into the bytes that were read.
class Pickle {
 public:
  using Items = std::vector<std::pair<PickleValue, PickleValue>>;
  // May take a dict that is complete out of the pickle, and give it a number by which record()
  // finds it: what occurs by the million need not be kept as a dict.
  using Absorb = std::function<std::optional<uint32_t>(const Pickle& pickle, const Items& items)>;

  // UserError where `bytes` is damaged or holds anything but plain data; `source` names it.
  Pickle(std::string_view bytes, const std::string& source, const Absorb& absorb = {});

  const PickleValue& root() const { return root_; }
  // What the value holds; empty for other types (0 for numbers).
  std::string_view text(const PickleValue& value) const;
  const std::vector<PickleValue>& list(const PickleValue& value) const;
  const Items& items(const PickleValue& value) const;
  const PickleValue& at(const PickleValue& dict, std::string_view key) const;  // None if missing
  std::optional<uint32_t> record(const PickleValue& value) const;  // of an absorbed dict
  static int64_t integer(const PickleValue& value);

 private:
  friend class PickleParser;
  struct Dict {
    Items items;
    std::optional<uint32_t> record;
  };
  PickleValue root_;
  std::vector<std::string_view> texts_;
  std::vector<std::vector<PickleValue>> lists_;
  std::vector<Dict> dicts_;
};

}  // namespace flashstep::measure
