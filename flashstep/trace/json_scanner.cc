#include "flashstep/trace/json_scanner.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void JsonScanner::fail(const std::string& expected) const {
  const std::string found = at_ < end_ ? str("\"", printable_utf8({at_, 1}), "\"") : "its end";
  throw UserError(
      str("[trace] expected ", expected, " at byte ", offset(), " of ", source_, ", got ", found));
}

char JsonScanner::peek() {
  while (at_ < end_ && is_space(*at_)) ++at_;
  return at_ < end_ ? *at_ : '\0';
}

bool JsonScanner::take(char c) {
  if (peek() != c) return false;
  ++at_;
  return true;
}

void JsonScanner::expect(char c) {
  if (!take(c)) fail(str("'", c, "'"));
}

void JsonScanner::skip_text() {
  for (;;) {
    const auto* quote =
        static_cast<const char*>(std::memchr(at_, '"', static_cast<size_t>(end_ - at_)));
    if (quote == nullptr) {
      at_ = end_;
      fail("the end of a text");
    }
    const char* slash = quote;
    while (slash > at_ && slash[-1] == '\\') --slash;
    at_ = quote + 1;
    if ((quote - slash) % 2 == 0) return;  // an odd number of backslashes escapes the quote
  }
}

std::string_view JsonScanner::text() {
  expect('"');
  const char* first = at_;
  skip_text();
  return {first, static_cast<size_t>(at_ - 1 - first)};
}

std::string_view JsonScanner::value() {
  const char next = peek();
  const char* first = at_;
  if (next == '"') {
    ++at_;
    skip_text();
  } else if (next == '{' || next == '[') {
    int64_t depth = 0;
    do {
      if (at_ == end_) fail("the end of a list or an object");
      const char c = *at_++;
      if (c == '"') skip_text();
      depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    } while (depth > 0);
  } else {
    while (at_ < end_ && *at_ != ',' && *at_ != '}' && *at_ != ']' && !is_space(*at_)) ++at_;
    if (at_ == first) fail("a value");
  }
  return {first, static_cast<size_t>(at_ - first)};
}

bool JsonScanner::scaled(int digits, int64_t& number) {
  const char next = peek();
  if (next != '-' && !is_digit(next)) {
    value();
    return false;
  }
  const char* first = at_;
  const bool negative = next == '-';
  if (negative) ++at_;
  uint64_t whole = 0;  // wraps beyond 2^64, which no time and no number of an event reaches
  while (at_ < end_ && is_digit(*at_)) whole = whole * 10 + static_cast<uint64_t>(*at_++ - '0');
  int missing = digits;
  if (at_ < end_ && *at_ == '.') {
    ++at_;
    for (; at_ < end_ && is_digit(*at_); ++at_) {
      if (missing > 0) whole = whole * 10 + static_cast<uint64_t>(*at_ - '0'), --missing;
    }
  }
  if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {  // rare: read it again as a double
    at_ = first;
    const std::string_view text = value();
    double precise = 0;
    std::from_chars(text.data(), text.data() + text.size(), precise);
    for (; digits > 0; --digits) precise *= 10;
    constexpr double kLargest = 9e18;  // what int64_t holds, and no time or number of an event
    number = static_cast<int64_t>(std::clamp(precise, -kLargest, kLargest));
    return true;
  }
  for (; missing > 0; --missing) whole *= 10;
  number = static_cast<int64_t>(negative ? 0 - whole : whole);
  return true;
}

std::string unescaped(std::string_view text) {
  const auto plain =
      nlohmann::json::parse(str('"', text, '"'), nullptr, /*allow_exceptions=*/false);
  return plain.is_string() ? plain.get<std::string>() : std::string(text);
}

}  // namespace flashstep::tools
