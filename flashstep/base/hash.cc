#define XXH_INLINE_ALL
#include "flashstep/base/hash.h"

#include <cstdio>
#include <xxhash.h>

#include "flashstep/detail/files.h"

namespace flashstep {

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Hasher::~Hasher() = default;

void Hasher::update(const void* data, size_t size_bytes) {
  XXH3_128bits_update(&state_->xxh, data, size_bytes);
}

std::string Hasher::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&state_->xxh);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return text;
}

std::string hash_bytes(std::string_view bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.hex();
}

std::string hash_file(const std::filesystem::path& path) {
  constexpr size_t kChunkBytes = 16 << 20;  // resident memory stays at this much
  const MappedFile file(path);
  Hasher hasher;
  for (size_t at = 0; at < file.size_bytes(); at += kChunkBytes) {
    hasher.update(file.bytes().substr(at, kChunkBytes));
    file.release_before(at);
  }
  return hasher.hex();
}

}  // namespace flashstep
