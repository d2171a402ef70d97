#include "flashstep/data/http_headers.h"

#include <gtest/gtest.h>

namespace flashstep {
namespace {

HttpHeaders headers(std::initializer_list<const char*> lines) {
  HttpHeaders result;
  for (const char* line : lines) result.read_line(line);
  return result;
}

TEST(HttpHeaders, NamesInAnyCaseAndValuesTrimmed) {
  const HttpHeaders h =
      headers({"HTTP/1.1 200 OK\r\n", "CONTENT-length:  42 \r\n", "Server: x\r\n", "\r\n"});
  EXPECT_EQ(h.content_length, 42u);
  EXPECT_EQ(h.file_size(200), 42u);
  EXPECT_EQ(h.file_size(206), std::nullopt);
}

TEST(HttpHeaders, RangesOfBothKinds) {
  const HttpHeaders part = headers({"Content-Range: bytes 100-199/200"});
  EXPECT_EQ(part.range_begin, 100u);
  EXPECT_EQ(part.file_size(206), 200u);
  const HttpHeaders beyond = headers({"content-range: bytes */200"});
  EXPECT_EQ(beyond.range_begin, std::nullopt);
  EXPECT_EQ(beyond.file_size(416), 200u);
  EXPECT_EQ(headers({"Content-Range: bytes 5-9/*"}).range_total, std::nullopt);
}

TEST(HttpHeaders, RedirectsKeepTheLinkedFileOnly) {
  const std::string digits = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";
  const HttpHeaders h =
      headers({"HTTP/1.1 302 Found", "Content-Length: 7", "X-Linked-Size: 99",
               ("X-Linked-Etag: \"" + digits + "\"").c_str(), "HTTP/2 200", "etag: \"other\""});
  EXPECT_EQ(h.content_length, std::nullopt);
  EXPECT_EQ(h.file_size(200), 99u);
  EXPECT_EQ(h.linked_sha256, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
}

TEST(HttpHeaders, NonsenseSaysNothing) {
  const HttpHeaders h = headers({"", ":", "Content-Length", "Content-Length: -1",
                                 "X-Linked-Size: 99999999999999999999999", "Content-Range: bytes",
                                 "Content-Range: pages 1-2/3", "X-Linked-Etag: \"abc\""});
  EXPECT_EQ(h.content_length, std::nullopt);
  EXPECT_EQ(h.file_size(200), std::nullopt);
  EXPECT_EQ(h.linked_sha256, "");
  EXPECT_EQ(parse_sha256(std::string(64, 'g')), "");
  EXPECT_EQ(parse_sha256(std::string(64, 'A')), std::string(64, 'a'));
}

}  // namespace
}  // namespace flashstep
