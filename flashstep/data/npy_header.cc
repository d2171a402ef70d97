#include "flashstep/data/npy_header.h"

#include <algorithm>
#include <bit>
#include <cctype>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr std::string_view kMagic = "\x93NUMPY";

// What numpy calls the types that people save ids as by accident.
std::string type_name(std::string_view descr) {
  if (descr.size() == 3 && descr[0] == '>') return str("big-endian '", descr, "'");
  constexpr std::string_view kNames[][2] = {
      {"|u1", "uint8"},   {"|i1", "int8"},    {"<i2", "int16"},        {"<i4", "int32"},
      {"<i8", "int64"},   {"<u8", "uint64"},  {"<f2", "float16"},      {"<f4", "float32"},
      {"<f8", "float64"}, {"|b1", "boolean"}, {"|O", "Python objects"}};
  for (const auto& [code, name] : kNames) {
    if (descr == code) return std::string(name);
  }
  return str("'", printable_utf8(descr.substr(0, 16)), "'");
}

// The Python literal {'descr': '<u2', 'fortran_order': False, 'shape': (N,), }: keys in any
// order, either quote, spaces anywhere, the trailing comma optional.
class DictionaryParser {
 public:
  DictionaryParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void parse() {
    expect('{');
    while (!take('}')) {
      parse_entry();
      if (take(',')) continue;
      expect('}');
      break;
    }
    skip_spaces();
    check(at_ == text_.size(), "nothing after it");
    check(seen_ == (kDescr | kOrder | kShape), "the keys descr, fortran_order and shape");
  }

  int bytes_per_token = 0;
  uint64_t tokens = 0;

 private:
  enum Key : unsigned { kOther = 0, kDescr = 1, kOrder = 2, kShape = 4 };

  void parse_entry() {
    const std::string_view key = quoted();
    expect(':');
    const Key bit = key == "descr"           ? kDescr
                    : key == "fortran_order" ? kOrder
                    : key == "shape"         ? kShape
                                             : kOther;
    check(bit != kOther && (seen_ & bit) == 0,
          "the keys descr, fortran_order and shape, once each");
    seen_ |= bit;
    if (bit == kDescr) parse_type();
    if (bit == kOrder) check(take_word("True") || take_word("False"), "True or False");
    if (bit == kShape) parse_shape();
  }

  void parse_type() {
    skip_spaces();
    require(at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"'), "[", name_,
            "] expected a vector of uint16 or uint32, got a structured array");
    const std::string_view descr = quoted();
    bytes_per_token = descr == "<u2" ? 2 : descr == "<u4" ? 4 : 0;
    require(bytes_per_token != 0, "[", name_, "] expected token ids of type uint16 or uint32, got ",
            type_name(descr));
  }

  void parse_shape() {
    expect('(');
    int dimensions = 0;
    while (!take(')')) {
      const uint64_t length = number();
      if (dimensions++ == 0) tokens = length;
      if (take(',')) continue;
      check(dimensions > 1, "a comma after the only length");
      expect(')');
      break;
    }
    require(dimensions == 1, "[", name_, "] expected a vector of token ids, got an array of ",
            dimensions, " dimensions");
  }

  uint64_t number() {
    skip_spaces();
    uint64_t value = 0;
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      check(at_ - begin < 18, "a length below 10^18");  // so that nothing overflows
      value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
    }
    check(at_ > begin, "a length");
    return value;
  }

  std::string_view quoted() {
    skip_spaces();
    check(at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"'), "a quoted word");
    const size_t end = text_.find(text_[at_], at_ + 1);
    check(end != std::string_view::npos, "a closing quote");
    const std::string_view word = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return word;
  }

  bool take_word(std::string_view word) {
    skip_spaces();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool take(char c) { return take_word(std::string_view(&c, 1)); }
  void expect(char c) { check(take(c), str("'", c, "'")); }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  void check(bool condition, std::string_view expected) const {
    require(condition, "[", name_, "] expected ", expected, " in the .npy header, got \"",
            printable_utf8(text_.substr(at_, 24)), "\" at its byte ", at_);
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  unsigned seen_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view file, const std::string& name) {
  require(!file.empty(), "[", name, "] expected a .npy file, got an empty file");
  require(file.substr(0, kMagic.size()) == kMagic, "[", name,
          "] expected a .npy file, got one that does not begin with \\x93NUMPY (a text becomes one "
          "by flashstep tokenizer encode; numbers of 16 bits by numpy: "
          "np.save(\"ids.npy\", np.fromfile(path, np.uint16)))");
  require(file.size() >= kMagic.size() + 2, "[", name, "] expected a .npy file, got one cut after ",
          file.size(), " bytes");
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(file[at]); };
  const int major = byte(6), minor = byte(7);
  require((major == 1 || major == 2) && minor == 0, "[", name,
          "] expected a .npy file of version 1.0 or 2.0, got ", major, ".", minor);

  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t dictionary = kMagic.size() + 2 + length_bytes;
  require(file.size() >= dictionary, "[", name, "] expected a .npy file, got one cut after ",
          file.size(), " bytes");
  size_t length = 0;
  for (size_t i = length_bytes; i-- > 0;)
    length = length << 8 | byte(dictionary - length_bytes + i);
  require(length <= file.size() - dictionary, "[", name, "] expected a .npy header of ", length,
          " bytes, got a file that ends ", file.size() - dictionary, " bytes after its beginning");

  DictionaryParser parser(file.substr(dictionary, length), name);
  parser.parse();
  NpyHeader header{parser.bytes_per_token, parser.tokens, dictionary + length};
  const uint64_t present = file.size() - header.data_offset;
  const uint64_t expected = header.tokens * static_cast<uint64_t>(header.bytes_per_token);
  require(present == expected, "[", name, "] expected ", header.tokens, " token ids of ",
          header.bytes_per_token, " bytes (", expected, " bytes), got ", present, " bytes");
  require(header.data_offset % static_cast<size_t>(header.bytes_per_token) == 0, "[", name,
          "] expected token ids that begin at a multiple of ", header.bytes_per_token,
          " bytes, got byte ", header.data_offset);
  return header;
}

std::string write_npy_header(int bytes_per_token, uint64_t tokens) {
  std::string header(kMagic);
  constexpr size_t kLength = kNpyHeaderBytes - 10;  // behind magic, version and this number
  header += {1, 0, static_cast<char>(kLength & 0xff), static_cast<char>(kLength >> 8)};
  header += str("{'descr': '<u", bytes_per_token, "', 'fortran_order': False, 'shape': (", tokens,
                ",), }");
  header.resize(kNpyHeaderBytes - 1, ' ');
  header += '\n';
  return header;
}

}  // namespace flashstep
