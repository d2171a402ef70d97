// Walks through JSON text without building anything of it: for files far larger than what they are
// read for. It accepts what a JSON parser accepts, and some text that one would refuse (it does not
// look into what it skips). Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flashstep::tools {

class JsonScanner {
 public:
  // `source` names the text in the UserError that every function throws where the text is not what
  // it must be.
  JsonScanner(std::string_view text, std::string_view source)
      : begin_(text.data()), at_(begin_), end_(begin_ + text.size()), source_(source) {}

  std::string_view source() const { return source_; }
  size_t offset() const { return static_cast<size_t>(at_ - begin_); }
  char peek();               // the next character that is no space; 0 at the end
  bool take(char c);         // passes it if it comes next
  void expect(char c);       // or UserError
  std::string_view text();   // a string, its escapes as they stand
  std::string_view value();  // skips a value of any kind and returns its text
  // A number times 10^digits, cut off below that: 12.3456 with 3 digits is 12345. False (and the
  // value skipped) for what is no number.
  bool scaled(int digits, int64_t& number);
  // Visits `visit(key)` for every key of an object; it must read or skip the value.
  template <typename Visit>
  void object(const Visit& visit) {
    expect('{');
    if (take('}')) return;
    do {
      const std::string_view key = text();
      expect(':');
      visit(key);
    } while (take(','));
    expect('}');
  }
  // Visits every element of an array, which `visit()` must read or skip.
  template <typename Visit>
  void array(const Visit& visit) {
    expect('[');
    if (take(']')) return;
    do {
      visit();
    } while (take(','));
    expect(']');
  }

  [[noreturn]] void fail(const std::string& expected) const;

 private:
  void skip_text();  // from behind its first quote

  const char* begin_;
  const char* at_;
  const char* end_;
  std::string_view source_;
};

// The text between the quotes without its escapes; as it stands where they are none of JSON's.
std::string unescaped(std::string_view text);

}  // namespace flashstep::tools
