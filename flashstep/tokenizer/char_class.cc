#include "flashstep/tokenizer/char_class.h"

namespace flashstep {
namespace {

struct ClassBits {
  uint64_t low, high;  // bit i: the low and the high bit of the class of the block's code point i
};
#include "flashstep/tokenizer/unicode_tables.inc"

}  // namespace

CharClass class_of(uint32_t code_point) {
  if (code_point >= kFirstUnlisted) return CharClass::kOther;
  const ClassBits& block = kBlocks[kBlockIndex[code_point / 64]];
  const uint32_t bit = code_point % 64;
  return static_cast<CharClass>((block.low >> bit & 1) | (block.high >> bit & 1) << 1);
}

Char decode_char(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  // Table 3-7 of the Unicode standard: the second byte's range shuts out overlong forms (E0, F0),
  // surrogates (ED) and values beyond U+10FFFF (F4).
  const uint32_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return {kMalformed, 1};
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return {kMalformed, 1};
  uint32_t code_point = lead & (0xFFu >> (length + 1));
  for (uint32_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {kMalformed, 1};
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  return {code_point, length};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Char c = decode_char(text);
    if (c.code_point == kMalformed) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

}  // namespace flashstep
