#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/pickle.h"

namespace flashstep::measure {
namespace {

// memory_viz passes a batch as arguments of one call, of which JavaScript allows some ten thousand.
constexpr int64_t kBatch = 1000;  // values of a list, or items of a dict; as Python's own pickler

}  // namespace

PickleWriter::PickleWriter() { bytes_ = "\x80\x02"; }  // PROTO 2

void PickleWriter::number(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i));
}

// Values collect behind a mark; a full batch is put into its container, and a new one begins.
void PickleWriter::begin_value() {
  if (open_.empty()) return;
  Container& container = open_.back();
  if (container.values == kBatch * (container.is_dict ? 2 : 1)) {
    bytes_ += container.is_dict ? 'u' : 'e';  // SETITEMS, APPENDS
    bytes_ += '(';                            // MARK
    container.values = 0;
  }
  ++container.values;
}

void PickleWriter::boolean(bool value) {
  begin_value();
  bytes_ += static_cast<char>(value ? 0x88 : 0x89);
}

void PickleWriter::integer(int64_t value) {
  begin_value();
  if (value >= 0 && value < 256) {
    bytes_ += 'K';
    number(static_cast<uint64_t>(value), 1);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    bytes_ += 'J';
    number(static_cast<uint64_t>(value), 4);
  } else {
    bytes_ += static_cast<char>(0x8a);  // LONG1, eight bytes
    number(8, 1);
    number(static_cast<uint64_t>(value), 8);
  }
}

void PickleWriter::text(std::string_view value) {
  const auto [slot, is_new] = texts_.try_emplace(std::string(value), memo_);
  if (!is_new) return repeat(slot->second);
  begin_value();
  const std::string utf8 = printable_utf8(value);
  bytes_ += 'X';  // BINUNICODE
  number(utf8.size(), 4);
  bytes_ += utf8;
  remember();
}

void PickleWriter::begin_list() {
  begin_value();
  bytes_ += "](";  // EMPTY_LIST MARK
  open_.push_back({false});
}

void PickleWriter::begin_dict() {
  begin_value();
  bytes_ += "}(";  // EMPTY_DICT MARK
  open_.push_back({true});
}

void PickleWriter::end() {
  require(!open_.empty() && (!open_.back().is_dict || open_.back().values % 2 == 0),
          "[pickle] expected a list, or a dict with a value for each key, to end");
  bytes_ += open_.back().is_dict ? 'u' : 'e';
  open_.pop_back();
}

uint32_t PickleWriter::remember() {
  bytes_ += 'r';  // LONG_BINPUT
  number(memo_, 4);
  return memo_++;
}

void PickleWriter::repeat(uint32_t remembered) {
  begin_value();
  if (remembered < 256) {
    bytes_ += 'h';  // BINGET
    number(remembered, 1);
  } else {
    bytes_ += 'j';  // LONG_BINGET
    number(remembered, 4);
  }
}

std::string PickleWriter::take() {
  require(open_.empty(), "[pickle] expected all lists and dicts to have ended");
  bytes_ += '.';  // STOP
  return std::move(bytes_);
}

}  // namespace flashstep::measure
