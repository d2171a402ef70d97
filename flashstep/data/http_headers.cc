#include "flashstep/data/http_headers.h"

#include <charconv>

namespace flashstep {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string parse_sha256(std::string_view text) {
  if (text.size() == 66 && text.front() == '"' && text.back() == '"') text = text.substr(1, 64);
  std::string digits = lower(text);
  const bool is_hash =
      digits.size() == 64 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_hash ? digits : "";
}

void HttpHeaders::read_line(std::string_view line) {
  if (line.starts_with("HTTP/")) {
    content_length = range_begin = range_total = std::nullopt;
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string name = lower(line.substr(0, colon));
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (name == "content-length") content_length = parse_number(value);
  if (name == "x-linked-size") linked_size = parse_number(value);
  if (name == "x-linked-etag") linked_sha256 = parse_sha256(value);
  if (name == "content-range" && value.starts_with("bytes ")) {
    const std::string_view range = value.substr(6);
    range_begin = parse_number(range.substr(0, range.find('-')));
    const size_t slash = range.find('/');
    if (slash != std::string_view::npos) range_total = parse_number(range.substr(slash + 1));
  }
}

std::optional<uint64_t> HttpHeaders::file_size(long status) const {
  if (linked_size) return linked_size;
  if (range_total) return range_total;
  return status == 200 ? content_length : std::nullopt;
}

}  // namespace flashstep
