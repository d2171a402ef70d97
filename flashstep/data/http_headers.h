// What a server's header lines say about the file it sends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashstep {

struct HttpHeaders {
  // Content-Length and Content-Range of the last answer, when there are several (redirects).
  std::optional<uint64_t> content_length;
  std::optional<uint64_t> range_begin;  // of "bytes BEGIN-END/TOTAL"
  std::optional<uint64_t> range_total;  // also of "bytes */TOTAL", which comes with status 416
  // Hugging Face names a large file's size and SHA-256 in the answer that redirects to it.
  std::optional<uint64_t> linked_size;
  std::string linked_sha256;  // 64 lower-case digits, or empty

  // Takes one line, a status line ("HTTP/1.1 200 OK") or "Name: value"; others are passed over.
  void read_line(std::string_view line);

  // The whole file's size, as far as the server told it; `status` is the last answer's.
  std::optional<uint64_t> file_size(long status) const;
};

// 64 hexadecimal digits in lower case, out of quotes; empty when `text` is anything else.
std::string parse_sha256(std::string_view text);

}  // namespace flashstep
