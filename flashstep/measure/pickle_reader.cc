#include <bit>
#include <cmath>

#include "flashstep/error.h"
#include "flashstep/measure/pickle.h"

namespace flashstep::measure {
namespace {

using Type = PickleValue::Type;

PickleValue indexed(Type type, size_t index) {
  PickleValue value;
  value.type = type;
  value.index = index;
  return value;
}

PickleValue integer_value(int64_t integer) {
  PickleValue value;
  value.type = Type::kInteger;
  value.integer = integer;
  return value;
}

}  // namespace

// The machine of a pickle: a stack of values, marks on it, and a memo.
class PickleParser {
 public:
  PickleParser(Pickle& pickle, std::string_view bytes, const std::string& source,
               const Pickle::Absorb& absorb)
      : pickle_(pickle), bytes_(bytes), source_(source), absorb_(absorb) {}

  void run() {
    while (!step(static_cast<uint8_t>(take(1)[0]))) {
    }
    pickle_.root_ = pop();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(str("[pickle] ", source_, ": expected a pickle of plain data, got ", what,
                        " at byte ", position_));
  }

  std::string_view take(size_t count) {
    if (count > bytes_.size() - position_) fail("its end");
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }

  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const std::string_view text = take(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(text[i])) << (8 * i);
    }
    return value;
  }

  PickleValue pop() {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) fail("an operation without its operand");
    const PickleValue value = stack_.back();
    stack_.pop_back();
    return value;
  }

  // The values behind the last mark, which leave the stack with it.
  std::vector<PickleValue> pop_to_mark() {
    if (marks_.empty()) fail("an operation without its mark");
    std::vector<PickleValue> values(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                                    stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }

  PickleValue& top(Type type, const char* what) {
    if (stack_.empty() || stack_.back().type != type) fail(str("no ", what, " to fill"));
    return stack_.back();
  }

  void push_text(size_t length) {
    pickle_.texts_.push_back(take(length));
    stack_.push_back(indexed(Type::kText, pickle_.texts_.size() - 1));
  }

  void push_list(std::vector<PickleValue> values) {
    pickle_.lists_.push_back(std::move(values));
    stack_.push_back(indexed(Type::kList, pickle_.lists_.size() - 1));
  }

  void push_real() {
    uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
    PickleValue value;
    value.type = Type::kReal;
    value.real = std::bit_cast<double>(bits);
    stack_.push_back(value);
  }

  void push_long(size_t bytes) {
    // Addresses may take nine bytes, the last of them 0: an unsigned number.
    if (bytes > 9 || (bytes == 9 && position_ + 9 <= bytes_.size() && bytes_[position_ + 8] != 0)) {
      fail("a number of more than 64 bits");
    }
    uint64_t value = number(std::min<size_t>(bytes, 8));
    if (bytes == 9) take(1);
    if (bytes > 0 && bytes < 8 && value >> (8 * bytes - 1) != 0)
      value |= ~uint64_t{0} << (8 * bytes);
    stack_.push_back(integer_value(static_cast<int64_t>(value)));
  }

  void append(const std::vector<PickleValue>& values) {
    auto& list = pickle_.lists_[top(Type::kList, "list").index];
    list.insert(list.end(), values.begin(), values.end());
  }

  void set_items(const std::vector<PickleValue>& values) {
    if (values.size() % 2 != 0) fail("a key without a value");
    Pickle::Dict& dict = pickle_.dicts_[top(Type::kDict, "dict").index];
    for (size_t i = 0; i < values.size(); i += 2) dict.items.push_back({values[i], values[i + 1]});
    if (!absorb_ || dict.record) return;
    dict.record = absorb_(pickle_, dict.items);
    if (dict.record) Pickle::Items().swap(dict.items);
  }

  void put(uint64_t slot) {
    // Picklers count up: a slot far beyond the last would only cost memory.
    if (stack_.empty() || slot > memo_.size() + 1024) fail("a strange place to remember");
    if (slot >= memo_.size()) memo_.resize(slot + 1);
    memo_[slot] = stack_.back();
  }

  void get(uint64_t slot) {
    if (slot >= memo_.size()) fail("something that was not remembered");
    stack_.push_back(memo_[slot]);
  }

  void push_tuple(size_t count) {
    std::vector<PickleValue> values(count);
    for (size_t i = count; i > 0; --i) values[i - 1] = pop();
    push_list(std::move(values));
  }

  void push_boolean(bool boolean) {
    PickleValue value = integer_value(boolean);
    value.type = Type::kBoolean;
    stack_.push_back(value);
  }

  bool push_value(uint8_t opcode);
  bool change(uint8_t opcode);

  // True after STOP.
  bool step(uint8_t opcode) {
    if (opcode == '.') return true;
    if (!push_value(opcode) && !change(opcode)) fail(str("opcode ", static_cast<int>(opcode)));
    return false;
  }

  Pickle& pickle_;
  std::string_view bytes_;
  const std::string& source_;
  const Pickle::Absorb& absorb_;
  size_t position_ = 0;
  std::vector<PickleValue> stack_, memo_;
  std::vector<size_t> marks_;
};

// Opcodes that put a new value on the stack.
bool PickleParser::push_value(uint8_t opcode) {
  switch (opcode) {
    case 'N':
      stack_.push_back({});
      return true;
    case 0x88:
      push_boolean(true);
      return true;
    case 0x89:
      push_boolean(false);
      return true;
    case 'K':
      stack_.push_back(integer_value(static_cast<int64_t>(number(1))));
      return true;
    case 'M':
      stack_.push_back(integer_value(static_cast<int64_t>(number(2))));
      return true;
    case 'J':
      stack_.push_back(integer_value(static_cast<int32_t>(number(4))));
      return true;
    case 0x8a:
      push_long(number(1));
      return true;
    case 'G':
      push_real();
      return true;
    case 0x8c:
      push_text(number(1));
      return true;
    case 'X':
      push_text(number(4));
      return true;
    case 0x8d:
      push_text(number(8));
      return true;
    case ']':
    case ')':
      push_list({});
      return true;
    case 't':
    case 'l':
      push_list(pop_to_mark());
      return true;
    case 0x85:
      push_tuple(1);
      return true;
    case 0x86:
      push_tuple(2);
      return true;
    case 0x87:
      push_tuple(3);
      return true;
    case '}':
      pickle_.dicts_.emplace_back();
      stack_.push_back(indexed(Type::kDict, pickle_.dicts_.size() - 1));
      return true;
    case 'h':
      get(number(1));
      return true;
    case 'j':
      get(number(4));
      return true;
    default:
      return false;
  }
}

// Opcodes that fill what is there, remember it, or say how to read.
bool PickleParser::change(uint8_t opcode) {
  switch (opcode) {
    case 0x80:
      take(1);
      return true;  // protocol: all are read alike
    case 0x95:
      take(8);
      return true;  // frame
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case 'a': {
      const PickleValue value = pop();
      append({value});
      return true;
    }
    case 'e':
      append(pop_to_mark());
      return true;
    case 's': {
      const PickleValue value = pop(), key = pop();
      set_items({key, value});
      return true;
    }
    case 'u':
      set_items(pop_to_mark());
      return true;
    case 'q':
      put(number(1));
      return true;
    case 'r':
      put(number(4));
      return true;
    case 0x94:
      put(memo_.size());
      return true;
    default:
      return false;
  }
}

Pickle::Pickle(std::string_view bytes, const std::string& source, const Absorb& absorb) {
  PickleParser(*this, bytes, source, absorb).run();
}

std::string_view Pickle::text(const PickleValue& value) const {
  return value.type == Type::kText ? texts_[value.index] : std::string_view();
}

const std::vector<PickleValue>& Pickle::list(const PickleValue& value) const {
  static const std::vector<PickleValue> none;
  return value.type == Type::kList ? lists_[value.index] : none;
}

const Pickle::Items& Pickle::items(const PickleValue& value) const {
  static const Items none;
  return value.type == Type::kDict ? dicts_[value.index].items : none;
}

const PickleValue& Pickle::at(const PickleValue& dict, std::string_view key) const {
  static const PickleValue none{};
  for (const auto& [name, value] : items(dict)) {
    if (text(name) == key) return value;
  }
  return none;
}

std::optional<uint32_t> Pickle::record(const PickleValue& value) const {
  return value.type == Type::kDict ? dicts_[value.index].record : std::nullopt;
}

int64_t Pickle::integer(const PickleValue& value) {
  constexpr double kBeyond = 0x1p63;
  const bool fits = value.type == Type::kReal && std::abs(value.real) < kBeyond;  // no NaN does
  if (fits) return static_cast<int64_t>(value.real);
  return value.type == Type::kInteger || value.type == Type::kBoolean ? value.integer : 0;
}

}  // namespace flashstep::measure
