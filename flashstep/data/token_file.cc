#include "flashstep/detail/token_file.h"

#include <algorithm>

#include "flashstep/base/hash.h"
#include "flashstep/base/text.h"
#include "flashstep/data/npy_header.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr uint64_t kChunkTokens = 4 << 20;  // between two looks at what may be released

// A plain loop over one type: compilers turn it into vector instructions.
template <typename Id>
uint32_t largest(const Id* begin, const Id* end) {
  Id result = 0;
  for (; begin != end; ++begin) result = std::max(result, *begin);
  return result;
}

template <typename Id, typename Out>
void widen(const void* ids, uint64_t begin, std::span<Out> out) {
  const Id* first = static_cast<const Id*>(ids) + begin;
  std::copy(first, first + out.size(), out.begin());
}

}  // namespace

TokenView::TokenView(std::string_view npy_file, const std::string& name) {
  const NpyHeader header = parse_npy_header(npy_file, name);
  ids_ = npy_file.data() + header.data_offset;
  size_ = header.tokens;
  bytes_per_token_ = header.bytes_per_token;
}

void TokenView::read(uint64_t begin, std::span<int64_t> out) const {
  bytes_per_token_ == 2 ? widen<uint16_t>(ids_, begin, out) : widen<uint32_t>(ids_, begin, out);
}

void TokenView::read(uint64_t begin, std::span<uint32_t> out) const {
  bytes_per_token_ == 2 ? widen<uint16_t>(ids_, begin, out) : widen<uint32_t>(ids_, begin, out);
}

uint32_t TokenView::max_id(uint64_t begin, uint64_t end) const {
  if (bytes_per_token_ == 2) {
    const auto* ids = static_cast<const uint16_t*>(ids_);
    return largest(ids + begin, ids + end);
  }
  const auto* ids = static_cast<const uint32_t*>(ids_);
  return largest(ids + begin, ids + end);
}

TokenFile::TokenFile(const std::filesystem::path& path, std::optional<int64_t> vocab_size)
    : path_(path), file_(path) {
  static_cast<TokenView&>(*this) = TokenView(file_.bytes(), path.string());
  data_offset_ = file_.size_bytes() - size() * static_cast<uint64_t>(bytes_per_token());
  if (vocab_size) check_ids_below(*vocab_size);
}

void TokenFile::check_ids_below(int64_t vocab_size) const {
  for (uint64_t begin = 0; begin < size(); begin += kChunkTokens) {
    const uint64_t end = std::min(begin + kChunkTokens, size());
    check_ids_below(vocab_size, begin, end);
    release_before(end);
  }
}

void TokenFile::check_ids_below(int64_t vocab_size, uint64_t begin, uint64_t end) const {
  if (max_id(begin, end) < vocab_size) return;
  uint64_t at = begin;
  while ((*this)[at] < vocab_size) ++at;
  throw UserError(str("[", path_.string(), "] expected token ids below the vocabulary's ",
                      vocab_size, ", got ", (*this)[at], " at position ", at));
}

std::string TokenFile::fingerprint() const {
  constexpr uint64_t kWindows = 64, kWindowTokens = 4096;
  Hasher hasher;
  hasher.update(str(size(), " tokens of ", bytes_per_token(), " bytes"));
  std::vector<uint32_t> ids;
  const auto add = [&](uint64_t begin, uint64_t tokens) {
    ids.resize(tokens);
    read(begin, ids);
    hasher.update(ids.data(), ids.size() * sizeof(uint32_t));
  };
  if (size() <= kWindows * kWindowTokens) {
    add(0, size());
  } else {
    const uint64_t last = size() - kWindowTokens;
    for (uint64_t i = 0; i < kWindows; ++i) add(last / (kWindows - 1) * i, kWindowTokens);
    add(last, kWindowTokens);
  }
  return hasher.hex();
}

void TokenFile::release_before(uint64_t index) const {
  file_.release_before(data_offset_ + index * static_cast<uint64_t>(bytes_per_token()));
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size)
    : name_(path.string()),
      file_(path),
      vocab_size_(vocab_size),
      bytes_per_token_(vocab_size <= 1 << 16 ? 2 : 4) {
  require(vocab_size >= 1 && vocab_size <= int64_t{1} << 32, "[", name_,
          "] expected a vocabulary of 1 to 2^32 tokens, got ", vocab_size);
  file_.write(write_npy_header(bytes_per_token_, 0));  // its length is known only at the end
}

void TokenFileWriter::append(std::span<const uint32_t> ids) {
  if (ids.empty()) return;
  const uint32_t max_id = largest(ids.data(), ids.data() + ids.size());
  require(max_id < vocab_size_, "[", name_, "] expected token ids below the vocabulary's ",
          vocab_size_, ", got ", max_id);
  if (bytes_per_token_ == 2) {
    narrow_.assign(ids.begin(), ids.end());
    file_.write(narrow_.data(), narrow_.size() * sizeof(uint16_t));
  } else {
    file_.write(ids.data(), ids.size_bytes());
  }
  tokens_ += ids.size();
}

void TokenFileWriter::commit() {
  const std::string header = write_npy_header(bytes_per_token_, tokens_);
  file_.overwrite(0, header.data(), header.size());
  file_.commit();
}

}  // namespace flashstep
