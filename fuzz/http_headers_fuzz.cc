// Sources: flashstep/data/http_headers.cc
// Any bytes as the header lines of a server: passed over or understood, never believed beyond their
// form.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "flashstep/data/http_headers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  flashstep::HttpHeaders headers;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    headers.read_line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (!headers.linked_sha256.empty() && headers.linked_sha256.size() != 64) std::abort();
  for (const char c : headers.linked_sha256) {
    if (!is_hex(c)) std::abort();
  }
  for (const long status : {200L, 206L, 416L, 404L}) {
    const auto whole = headers.file_size(status);
    if (whole && !headers.content_length && !headers.range_total && !headers.linked_size)
      std::abort();
  }
  return 0;
}
