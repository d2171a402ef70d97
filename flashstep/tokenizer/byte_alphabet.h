// GPT-2's alphabet of 256 printable characters, one a byte, in which vocab.json, merges.txt and
// tokenizer.json spell tokens: '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves,
// the 68 remaining bytes, in ascending order, for U+0100..U+0143 (so a space is spelled U+0120).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashstep {

// The bytes in the order of GPT-2's vocabulary: those that stand for themselves, then the others.
const std::array<uint8_t, 256>& bytes_in_vocabulary_order();

// UTF-8 spelling of any bytes.
std::string spell(std::string_view bytes);

// The bytes so spelled; nothing if a character is not of the alphabet.
std::optional<std::string> unspell(std::string_view spelling);

}  // namespace flashstep
