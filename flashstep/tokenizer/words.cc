#include "flashstep/tokenizer/words.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "flashstep/error.h"
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

constexpr uint64_t first_bits(size_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// The places of the bits set in a block.
void append_bits(uint64_t bits, size_t block, std::vector<size_t>& places) {
  for (; bits != 0; bits &= bits - 1) {
    places.push_back(block * 64 + static_cast<size_t>(std::countr_zero(bits)));
  }
}

// 's 'd 'm 't 'll 've 're at the start of `text`: 2 or 3, or 0 when there is none. In any case of
// letters, where U+017F, the long s, is an s: 3.
size_t contraction_length(std::string_view text, bool any_case) {
  const auto letter = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  const char first = letter(1);
  if (first == 's' || first == 'd' || first == 'm' || first == 't') return 2;
  const char second = letter(2);
  const bool is_long_s = any_case && text.substr(1).starts_with("\u017f");
  const bool matches = (first == 'l' && second == 'l') || (first == 'v' && second == 'e') ||
                       (first == 'r' && second == 'e') || is_long_s;
  return matches ? 3 : 0;
}

CharClass class_at(std::string_view text) { return class_of(decode_char(text).code_point); }

bool is_cut_between(CharClass before, CharClass after) {
  if (before == CharClass::kOther) return after == CharClass::kNumber;
  return before != CharClass::kSpace && before != after;
}

constexpr std::array kPatternNames = {"gpt2", "gpt4"};

}  // namespace

const char* name_of(WordPattern pattern) { return kPatternNames[static_cast<size_t>(pattern)]; }

WordPattern word_pattern_by_name(const std::string& name) {
  const auto found = std::find(kPatternNames.begin(), kPatternNames.end(), name);
  require(found != kPatternNames.end(), "[tokenizer] expected the pattern gpt2 or gpt4, got \"",
          name, "\"");
  return static_cast<WordPattern>(found - kPatternNames.begin());
}

size_t WordScanner::mark_starts(std::string_view text, size_t window) {
  const size_t size = std::min(window, text.size());
  mark_classes(text, size);
  if (is_gpt4_) {
    mark_gpt4_starts(size);
    join_wide_signs(text, size);
  } else {
    mark_gpt2_starts(size);
  }
  mark_wide_spaces(text, size);
  mark_contractions(text, size);
  if (size == text.size()) return size;
  size_t certain = size - kLookaheadBytes;
  if (is_gpt4_ && has(&Masks::spaces, size - 1)) {
    size_t begin = size - 1;
    while (begin > 0 && has(&Masks::spaces, begin - 1)) --begin;
    certain = std::min(certain, begin);
  }
  return certain;
}

void WordScanner::mark_classes(std::string_view text, size_t size) {
  // + 2: the last character or group of eight may reach over `size`, and starts look one block
  // ahead.
  masks_.assign(size / 64 + 2, Masks{});
  wide_spaces_.clear();
  wide_signs_.clear();
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
        if (is_gpt4_) {
          const uint64_t ends = between(bytes, '\n', '\n') | between(bytes, '\r', '\r');
          masks.line_ends |= gather(ends) << shift;
        }
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
  if (c.code_point == '\n' || c.code_point == '\r')
    masks_[at / 64].line_ends |= uint64_t{1} << at % 64;
  for (size_t i = at; i < at + c.length; ++i) {
    Masks& masks = masks_[i / 64];
    const uint64_t bit = uint64_t{1} << i % 64;
    if (char_class == CharClass::kLetter) masks.letters |= bit;
    if (char_class == CharClass::kNumber) masks.numbers |= bit;
    if (char_class == CharClass::kSpace) masks.spaces |= bit;
  }
  if (char_class == CharClass::kSpace && c.length > 1) wide_spaces_.push_back(at);
  if (char_class == CharClass::kOther && c.length > 1 && is_gpt4_) wide_signs_.push_back(at);
  return c.length;
}

void WordScanner::mark_gpt2_starts(size_t size) {
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
    const uint64_t present = first_bits(left);
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
    append_bits(starts_[block] & now.quotes, block, apostrophes_);
    before = now;
    others_before = others;
  }
}

// Where white space is not the line ends that signs before it took: its first character starts a
// word, which reaches to its last line end; what is left behind that is as in GPT-2's pattern, but
// that its last character goes with letters behind it whatever it is. So do signs, where one alone
// starts a word.
void WordScanner::mark_gpt4_starts(size_t size) {
  const size_t blocks = (size + 63) / 64;
  starts_.resize(blocks);
  apostrophes_.clear();
  long_numbers_.clear();
  indents_.clear();
  Masks before{};
  uint64_t signs_before = 0, taken_before = 0, sign_starts_before = 0;
  for (size_t block = 0; block < blocks; ++block) {
    const Masks& now = masks_[block];
    const Masks& next = masks_[block + 1];
    const size_t left = size - block * 64;
    const uint64_t present = first_bits(left);
    const uint64_t signs = ~(now.letters | now.numbers | now.spaces);
    const uint64_t sign_starts =
        signs & ~after(signs, signs_before) & ~after(now.blanks, before.blanks) & now.leads;

    // Adding a bit at the beginning of a row of ones clears the row.
    const uint64_t taken_first =
        now.line_ends & (after(signs, signs_before) | (taken_before >> 63));
    const uint64_t taken = now.line_ends & ~(now.line_ends + taken_first);

    const uint64_t narrow = now.spaces & ~now.line_ends;  // white space within a line
    const uint64_t own_ends_before = before.line_ends & ~taken_before;
    const uint64_t joins =
        after(narrow, before.spaces & ~before.line_ends) | after(sign_starts, sign_starts_before);
    const uint64_t letter_starts = now.letters & ~after(now.letters, before.letters) & ~joins;
    const uint64_t number_starts = now.numbers & ~after(now.numbers, before.numbers) & now.leads;
    const uint64_t first_spaces =
        now.spaces & ~taken & (~after(now.spaces, before.spaces) | after(taken, taken_before));
    const uint64_t not_space = ~now.spaces & present;
    const uint64_t next_not_space = left > 64 ? ~next.spaces << 63 : 0;
    const uint64_t last_spaces = narrow & (not_space >> 1 | next_not_space);

    starts_[block] = (sign_starts | letter_starts | number_starts | first_spaces | last_spaces |
                      (split_digits_ ? now.numbers : 0)) &
                     now.leads & present;
    append_bits(starts_[block] & now.quotes, block, apostrophes_);
    append_bits(narrow & after(now.line_ends & ~taken, own_ends_before) & now.leads & present,
                block, indents_);
    const auto follows = [&](int places) {
      return now.numbers >> places | next.numbers << (64 - places);
    };
    if (!split_digits_) append_bits(number_starts & follows(3) & present, block, long_numbers_);
    before = now;
    signs_before = signs;
    taken_before = taken;
    sign_starts_before = sign_starts;
  }
  mark_long_numbers(size);
  mark_indents(size);
}

void WordScanner::mark_long_numbers(size_t size) {
  for (const size_t begin : long_numbers_) {
    int digits = 1;
    for (size_t at = begin + 1; at < size && has(&Masks::numbers, at); ++at) {
      if (has(&Masks::leads, at) && digits++ % 3 == 0) set_start(at);
    }
  }
}

// Behind a line end that is not the white space's last there is no start.
void WordScanner::mark_indents(size_t size) {
  for (const size_t begin : indents_) {
    size_t end = begin;
    while (end < size && has(&Masks::spaces, end) && !has(&Masks::line_ends, end)) ++end;
    if (end == size || !has(&Masks::line_ends, end)) set_start(begin);
  }
}

void WordScanner::join_wide_signs(std::string_view text, size_t size) {
  for (const size_t at : wide_signs_) {
    const size_t next = at + decode_char(text.substr(at)).length;
    const bool is_start = starts_[at / 64] >> at % 64 & 1;
    if (is_start && next < size && has(&Masks::letters, next)) clear_start(next);
  }
}

void WordScanner::mark_wide_spaces(std::string_view text, size_t size) {
  for (const size_t at : wide_spaces_) {
    const size_t next = at + decode_char(text.substr(at)).length;
    if (next >= size) continue;
    const bool ends_piece = !is_gpt4_ && split_digits_ && has(&Masks::numbers, next);
    if (!has(&Masks::spaces, next) && !ends_piece) set_start(at);
  }
}

void WordScanner::mark_contractions(std::string_view text, size_t size) {
  for (const size_t at : apostrophes_) {
    const size_t length = contraction_length(text.substr(at), is_gpt4_);
    if (length == 0) continue;
    if (at + 1 < size) clear_start(at + 1);
    const size_t end = at + length;
    if (end < size) set_start(end);
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
