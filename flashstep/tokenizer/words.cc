#include "flashstep/tokenizer/words.h"

#include <algorithm>
#include <cstring>

#include "flashstep/tokenizer/char_class.h"

namespace flashstep {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101;
constexpr uint64_t kHighBits = 0x8080808080808080;

uint64_t load_8(const char* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
  return value;
}

// The high bit of each byte that is >= bound; all bytes and the bound must be below 0x80.
constexpr uint64_t at_least(uint64_t bytes, uint8_t bound) {
  return (bytes + kOnes * (0x80u - bound)) & kHighBits;
}
constexpr uint64_t between(uint64_t bytes, uint8_t low, uint8_t high) {
  return at_least(bytes, low) & ~at_least(bytes, high + 1);
}

// The high bits of 8 bytes as an 8-bit number: byte i's bit 8i goes to bit 56 + i.
constexpr uint64_t gather(uint64_t high_bits) {
  return (high_bits >> 7) * 0x0102040810204080 >> 56;
}

// `words[block]` moved up by one position (each bit to its successor), with the bit carried in.
constexpr uint64_t after(uint64_t bits, uint64_t bits_before) {
  return bits << 1 | bits_before >> 63;
}

// 's 'd 'm 't 'll 've 're at the start of `text`: 2, 3, or 0 when there is none.
size_t contraction_length(std::string_view text) {
  if (text.size() < 2) return 0;
  const char first = text[1];
  if (first == 's' || first == 'd' || first == 'm' || first == 't') return 2;
  if (text.size() < 3) return 0;
  const char second = text[2];
  const bool matches = (first == 'l' && second == 'l') || (first == 'v' && second == 'e') ||
                       (first == 'r' && second == 'e');
  return matches ? 3 : 0;
}

CharClass class_at(std::string_view text) { return class_of(decode_char(text).code_point); }

bool is_cut_between(CharClass before, CharClass after) {
  return before != CharClass::kSpace && before != after &&
         !(before == CharClass::kOther && after == CharClass::kLetter);
}

}  // namespace

size_t WordScanner::mark_starts(std::string_view text, size_t window) {
  const size_t size = std::min(window, text.size());
  mark_classes(text, size);
  mark_class_changes(size);
  mark_wide_spaces(text, size);
  mark_contractions(text, size);
  return size;
}

void WordScanner::mark_classes(std::string_view text, size_t size) {
  // + 2: the last character or group of eight may reach over `size`, and starts look one block
  // ahead.
  masks_.assign(size / 64 + 2, Masks{});
  wide_spaces_.clear();
  for (size_t at = 0; at < size;) {
    if (at % 8 == 0 && at + 8 <= text.size()) {
      const uint64_t bytes = load_8(text.data() + at);
      if ((bytes & kHighBits) == 0) {
        Masks& masks = masks_[at / 64];
        const size_t shift = at % 64;
        // | 0x20 maps A-Z to a-z and nothing else into that range.
        masks.letters |= gather(between(bytes | kOnes * 0x20, 'a', 'z')) << shift;
        masks.numbers |= gather(between(bytes, '0', '9')) << shift;
        const uint64_t blanks = between(bytes, ' ', ' ');
        masks.blanks |= gather(blanks) << shift;
        masks.spaces |= gather(blanks | between(bytes, '\t', '\r')) << shift;
        masks.quotes |= gather(between(bytes, '\'', '\'')) << shift;
        masks.leads |= uint64_t{0xFF} << shift;
        at += 8;
        continue;
      }
    }
    at += mark_char(text, at);
  }
}

uint32_t WordScanner::mark_char(std::string_view text, size_t at) {
  const Char c = decode_char(text.substr(at, 4));
  const CharClass char_class = class_of(c.code_point);
  masks_[at / 64].leads |= uint64_t{1} << at % 64;
  if (c.code_point == ' ') masks_[at / 64].blanks |= uint64_t{1} << at % 64;
  if (c.code_point == '\'') masks_[at / 64].quotes |= uint64_t{1} << at % 64;
  for (size_t i = at; i < at + c.length; ++i) {
    Masks& masks = masks_[i / 64];
    const uint64_t bit = uint64_t{1} << i % 64;
    if (char_class == CharClass::kLetter) masks.letters |= bit;
    if (char_class == CharClass::kNumber) masks.numbers |= bit;
    if (char_class == CharClass::kSpace) masks.spaces |= bit;
  }
  if (char_class == CharClass::kSpace && c.length > 1) wide_spaces_.push_back(at);
  return c.length;
}

void WordScanner::mark_class_changes(size_t size) {
  const size_t blocks = (size + 63) / 64;
  starts_.resize(blocks);
  apostrophes_.clear();
  const uint64_t digits = split_digits_ ? ~uint64_t{0} : 0;  // each of them is a word
  Masks before{};
  uint64_t others_before = 0;
  for (size_t block = 0; block < blocks; ++block) {
    const Masks& now = masks_[block];
    const Masks& next = masks_[block + 1];
    const size_t left = size - block * 64;
    const uint64_t present = left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
    const uint64_t others = ~(now.letters | now.numbers | now.spaces);
    const uint64_t change = (now.letters & ~after(now.letters, before.letters)) |
                            (now.numbers & ~after(now.numbers, before.numbers)) |
                            (others & ~after(others, others_before));
    const uint64_t text_starts =
        (change & ~after(now.blanks, before.blanks)) | (now.numbers & digits);

    // The last space of a run when the run is not the text's end, or a piece's; wide spaces come
    // later.
    const uint64_t not_space = ~(now.spaces | (now.numbers & digits)) & present;
    const uint64_t next_not_space = left > 64 ? ~(next.spaces | (next.numbers & digits)) << 63 : 0;
    const uint64_t space_starts =
        now.spaces & (~after(now.spaces, before.spaces) | not_space >> 1 | next_not_space);

    starts_[block] = (text_starts | space_starts) & now.leads & present;
    for (uint64_t bits = starts_[block] & now.quotes; bits != 0; bits &= bits - 1) {
      apostrophes_.push_back(block * 64 + static_cast<size_t>(std::countr_zero(bits)));
    }
    before = now;
    others_before = others;
  }
}

void WordScanner::mark_wide_spaces(std::string_view text, size_t size) {
  for (const size_t at : wide_spaces_) {
    const size_t next = at + decode_char(text.substr(at)).length;
    if (next >= size) continue;
    const Masks& masks = masks_[next / 64];
    const uint64_t ends_before = masks.spaces | (split_digits_ ? masks.numbers : 0);
    if ((ends_before >> next % 64 & 1) == 0) starts_[at / 64] |= uint64_t{1} << at % 64;
  }
}

void WordScanner::mark_contractions(std::string_view text, size_t size) {
  for (const size_t at : apostrophes_) {
    const size_t length = contraction_length(text.substr(at));
    if (length == 0) continue;
    if (at + 1 < size) starts_[(at + 1) / 64] &= ~(uint64_t{1} << (at + 1) % 64);
    const size_t end = at + length;
    if (end < size) starts_[end / 64] |= uint64_t{1} << end % 64;
  }
}

size_t find_cut(std::string_view text, size_t from) {
  // A continuation byte may belong to a character that begins earlier; any other byte begins one.
  while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
  if (from >= text.size()) return text.size();
  CharClass before = class_at(text.substr(from));
  while (true) {
    from += decode_char(text.substr(from)).length;
    if (from >= text.size()) return text.size();
    const CharClass after = class_at(text.substr(from));
    if (is_cut_between(before, after)) return from;
    before = after;
  }
}

}  // namespace flashstep
