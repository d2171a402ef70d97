#include "flashstep/tokenizer/byte_alphabet.h"

#include "flashstep/tokenizer/char_class.h"

namespace flashstep {
namespace {

constexpr uint32_t kFirstSubstitute = 0x100;
constexpr uint32_t kSubstitutes = 68;  // 0..32, 127..160 and 173

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<uint8_t, 256> order{};            // see bytes_in_vocabulary_order()
  std::array<uint32_t, 256> code_points{};     // by byte
  std::array<uint8_t, kSubstitutes> hidden{};  // the byte spelled U+0100 + i

  Alphabet() {
    size_t own = 0;
    uint32_t substitutes = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (stands_for_itself(byte)) {
        order[own++] = static_cast<uint8_t>(byte);
        code_points[byte] = byte;
      } else {
        hidden[substitutes] = static_cast<uint8_t>(byte);
        code_points[byte] = kFirstSubstitute + substitutes++;
      }
    }
    for (const uint8_t byte : hidden) order[own++] = byte;
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

const std::array<uint8_t, 256>& bytes_in_vocabulary_order() { return alphabet().order; }

std::string spell(std::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) {
    const uint32_t code_point = alphabet().code_points[static_cast<uint8_t>(byte)];
    if (code_point < 0x80) {
      spelling += static_cast<char>(code_point);
    } else {  // all others have two bytes
      spelling += static_cast<char>(0xC0 | code_point >> 6);
      spelling += static_cast<char>(0x80 | (code_point & 0x3F));
    }
  }
  return spelling;
}

std::optional<std::string> unspell(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Char c = decode_char(spelling);
    if (c.code_point < 0x100 && stands_for_itself(c.code_point)) {
      bytes += static_cast<char>(c.code_point);
    } else if (c.code_point >= kFirstSubstitute && c.code_point < kFirstSubstitute + kSubstitutes) {
      bytes += static_cast<char>(alphabet().hidden[c.code_point - kFirstSubstitute]);
    } else {
      return std::nullopt;
    }
    spelling.remove_prefix(c.length);
  }
  return bytes;
}

}  // namespace flashstep
