// Token files: vectors of token ids as NumPy .npy, mapped into memory, checked when opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/detail/files.h"

namespace flashstep {

// The ids within the bytes of a .npy file; it does not own them.
class TokenView {
 public:
  TokenView() = default;
  // UserError, beginning with [name], as parse_npy_header() says.
  TokenView(std::string_view npy_file, const std::string& name);

  uint64_t size() const { return size_; }
  int bytes_per_token() const { return bytes_per_token_; }
  uint32_t operator[](uint64_t index) const {
    return bytes_per_token_ == 2 ? static_cast<const uint16_t*>(ids_)[index]
                                 : static_cast<const uint32_t*>(ids_)[index];
  }
  // Widens ids [begin, begin + out.size()) into `out`; they must lie within the file.
  void read(uint64_t begin, std::span<int64_t> out) const;
  void read(uint64_t begin, std::span<uint32_t> out) const;
  // The largest id among [begin, end); 0 when there is none. One pass at memory speed.
  uint32_t max_id(uint64_t begin, uint64_t end) const;

 private:
  const void* ids_ = nullptr;
  uint64_t size_ = 0;
  int bytes_per_token_ = 2;
};

// A token file, mapped: opening costs no more than its header, unless ids are checked.
class TokenFile : public TokenView {
 public:
  // UserError if the file is missing, unreadable, or no vector of uint16 or uint32; with
  // `vocab_size`, also if an id is not below it (the message names the first).
  explicit TokenFile(const std::filesystem::path& path,
                     std::optional<int64_t> vocab_size = std::nullopt);

  const std::filesystem::path& path() const { return path_; }
  // MachineError if the file was cut short since it was opened; what reads for long asks it often.
  void check_size() const { file_.check_size(); }
  // Reads every id once and leaves nothing resident.
  void check_ids_below(int64_t vocab_size) const;
  // The same for ids [begin, end), which must lie within the file.
  void check_ids_below(int64_t vocab_size, uint64_t begin, uint64_t end) const;
  // Tells one token file from another without reading it all: the hash of its length, its type and
  // the ids of 65 windows spread evenly from the first to the last, 4096 ids each (all of them when
  // there are fewer).
  std::string fingerprint() const;
  // Tells the kernel that tokens before `index` are not needed again soon.
  void release_before(uint64_t index) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  size_t data_offset_ = 0;
};

// Writes a token file piece by piece; it appears under its name at commit(), whole.
class TokenFileWriter {
 public:
  // uint16 where vocab_size <= 65,536, else uint32. UserError unless 1 <= vocab_size <= 2^32.
  TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size);

  // UserError if an id is not below vocab_size; the file is then left unfinished.
  void append(std::span<const uint32_t> ids);
  uint64_t tokens() const { return tokens_; }
  void commit();

 private:
  std::string name_;
  AtomicFile file_;
  int64_t vocab_size_;
  int bytes_per_token_;
  uint64_t tokens_ = 0;
  std::vector<uint16_t> narrow_;  // ids on their way to the file
};

}  // namespace flashstep
