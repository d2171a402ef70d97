// A hash table from words (byte strings that are mostly short) to small values: the count of a word
// while training, its tokens while encoding. Words of up to 16 bytes lie in the entry itself, so
// that a look-up touches one cache line; longer ones lie behind each other in an arena.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/error.h"

namespace flashstep {

// Value: trivially copyable, starts as Value{}; up to 12 bytes with an alignment of 4, or 8 with
// one of 8, keep an entry at 32 bytes.
template <typename Value>
class WordTable {
 public:
  explicit WordTable(size_t slots = 1 << 10) : entries_(slots) {}  // slots: a power of two

  // The value of `word`, which must not be empty; `is_new` says whether it was put in by this call.
  // The reference lasts until the next call. `readable_end`: how far bytes behind the word may be
  // read.
  Value& find_or_insert(std::string_view word, const char* readable_end, bool& is_new) {
    const Key key = make_key(word, readable_end);
    size_t slot = key.hash & (entries_.size() - 1);
    while (true) {
      Entry& entry = entries_[slot];
      if (entry.length == key.length && entry.first == key.first &&
          (key.length <= kInlineBytes ? entry.second == key.second
                                      : is_in_arena(word, entry.second))) {
        is_new = false;
        return entry.value;
      }
      if (entry.length == 0) break;
      slot = (slot + 1) & (entries_.size() - 1);
    }
    is_new = true;
    return insert(word, key, slot);
  }

  // Makes room for so many words in all. Before the words of a larger table are put in, whose order
  // is that of their hashes, this is a must: they would pile up in a part of the slots.
  void reserve(size_t words) {
    if (2 * words > entries_.size()) grow(std::bit_ceil(2 * words));
  }

  size_t size() const { return size_; }
  size_t size_bytes() const { return entries_.size() * sizeof(Entry) + arena_.size(); }

  // Empty again, and as small as at the start.
  void clear() { *this = WordTable(); }

  // use(std::string_view word, const Value& value) for each entry, in no particular order.
  template <typename Use>
  void for_each(Use&& use) const {
    for (const Entry& entry : entries_) {
      if (entry.length == 0) continue;
      char inline_bytes[kInlineBytes];
      std::memcpy(inline_bytes, &entry.first, 8);
      std::memcpy(inline_bytes + 8, &entry.second, 8);
      const char* bytes =
          entry.length <= kInlineBytes ? inline_bytes : arena_.data() + entry.second;
      use(std::string_view(bytes, entry.length), entry.value);
    }
  }

 private:
  static constexpr uint64_t kInlineBytes = 16;
  struct Entry {
    uint64_t first,
        second;       // the word, filled up with zeros; or its hash and its place in the arena
    uint32_t length;  // 0: an empty slot
    Value value;
  };
  struct Key {
    uint64_t first, second, hash;
    uint64_t length;
  };

  // Folded 128-bit product; odd constants from the digits of pi.
  static uint64_t mix(uint64_t a, uint64_t b) {
    const auto product =
        static_cast<unsigned __int128>(a ^ 0x243F6A8885A308D3) * (b ^ 0x13198A2E03707345);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  static void load_16(const char* bytes, size_t length, const char* readable_end, uint64_t& first,
                      uint64_t& second) {
    if (readable_end - bytes >= 16) {
      std::memcpy(&first, bytes, 8);
      std::memcpy(&second, bytes + 8, 8);
      constexpr uint64_t kAll = ~uint64_t{0};  // little-endian: the first bytes are the low ones
      if (length < 8) {
        first &= ~(kAll << 8 * length);
        second = 0;
      } else if (length < 16) {
        second &= ~(kAll << 8 * (length - 8));
      }
    } else {
      char padded[16] = {};
      std::memcpy(padded, bytes, std::min<size_t>(length, 16));
      std::memcpy(&first, padded, 8);
      std::memcpy(&second, padded + 8, 8);
    }
  }

  static Key make_key(std::string_view word, const char* readable_end) {
    Key key;
    key.length = word.size();
    load_16(word.data(), word.size(), readable_end, key.first, key.second);
    key.hash = mix(key.first, key.second ^ key.length);
    if (word.size() > kInlineBytes) {
      for (size_t at = 16; at < word.size(); at += 16) {
        uint64_t first, second;
        load_16(word.data() + at, word.size() - at, readable_end, first, second);
        key.hash = mix(key.hash ^ first, second);
      }
      key.first = key.hash;
    }
    return key;
  }

  bool is_in_arena(std::string_view word, uint64_t offset) const {
    return std::memcmp(arena_.data() + offset, word.data(), word.size()) == 0;
  }

  Value& insert(std::string_view word, const Key& key, size_t slot) {
    require(key.length <= 0xFFFFFFFF, "[tokenizer] expected words below 4 GiB, got one of ",
            key.length, " bytes; is this text?");
    if (2 * (size_ + 1) > entries_.size()) {
      grow(2 * entries_.size());
      slot = free_slot(key.hash);
    }
    Entry& entry = entries_[slot];
    entry = {key.first, key.second, static_cast<uint32_t>(key.length), Value{}};
    if (key.length > kInlineBytes) {
      entry.second = arena_.size();
      arena_.append(word);
    }
    ++size_;
    return entry.value;
  }

  size_t free_slot(uint64_t hash) const {
    size_t slot = hash & (entries_.size() - 1);
    while (entries_[slot].length != 0) slot = (slot + 1) & (entries_.size() - 1);
    return slot;
  }

  void grow(size_t slots) {
    std::vector<Entry> old(slots);
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.length == 0) continue;
      const uint64_t hash =
          entry.length > kInlineBytes ? entry.first : mix(entry.first, entry.second ^ entry.length);
      entries_[free_slot(hash)] = entry;
    }
  }

  std::vector<Entry> entries_;
  std::string arena_;
  size_t size_ = 0;
};

}  // namespace flashstep
