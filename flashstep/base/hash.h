// XXH3 128-bit hashes: they detect damage and change, not malice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace flashstep {

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(const void* data, size_t size_bytes);
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }
  std::string hex() const;  // 32 lower-case hexadecimal digits of what came so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_bytes(std::string_view bytes);
std::string hash_file(const std::filesystem::path& path);  // streams; UserError if unreadable

}  // namespace flashstep
