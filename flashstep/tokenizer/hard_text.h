// Text that brings out mistakes, for tests.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace flashstep {

// Pieces that meet in every way: all classes, wide white space, contractions and what looks like
// one, malformed UTF-8 (lone continuation and lead bytes, overlong forms, surrogates, too large
// values).
inline const std::vector<std::string>& hard_pieces() {
  using std::string_literals::operator""s;
  static const std::vector<std::string> pieces = {"a",
                                                  "b",
                                                  "Z",
                                                  "abc",
                                                  "é",
                                                  "ß",
                                                  "字",
                                                  "漢字",
                                                  "𝔘",
                                                  "ª",
                                                  "1",
                                                  "42",
                                                  "²",
                                                  "½",
                                                  "٣",
                                                  "Ⅷ",
                                                  "𝟙",
                                                  "!",
                                                  "'",
                                                  "''",
                                                  "'s",
                                                  "'S",
                                                  "'t",
                                                  "'d",
                                                  "'m",
                                                  "'ll",
                                                  "'ve",
                                                  "'re",
                                                  "'l",
                                                  "'v",
                                                  "'r",
                                                  "'lx",
                                                  "'LL",
                                                  "'\u017f",
                                                  "-",
                                                  "...",
                                                  "\u0301",
                                                  "\u200d",
                                                  "👩‍👩‍👧",
                                                  "🇩🇪",
                                                  " ",
                                                  "  ",
                                                  "   ",
                                                  "\n",
                                                  "\n\n",
                                                  "\t",
                                                  "\r\n",
                                                  "\n  ",
                                                  " \n",
                                                  "\v",
                                                  "\f",
                                                  "\u00a0",
                                                  "\u0085",
                                                  "\u3000",
                                                  "\u2003\u2003",
                                                  "\u1680",
                                                  "\u200b",
                                                  "\u001c",
                                                  "\0"s,
                                                  "\x01",
                                                  "\x7f",
                                                  "\x80",
                                                  "\xbf",
                                                  "\xc0\x80",
                                                  "\xc2",
                                                  "\xe2\x82",
                                                  "\xed\xa0\x80",
                                                  "\xf4\x90\x80\x80",
                                                  "\xf0\x9f\x98",
                                                  "\xff",
                                                  "\xfe",
                                                  "<|endoftext|>",
                                                  "<|end|>",
                                                  "<|",
                                                  "|>"};
  return pieces;
}

inline std::string hard_text(std::mt19937_64& random, size_t pieces) {
  std::string text;
  for (size_t i = 0; i < pieces; ++i) {
    text += hard_pieces()[random() % hard_pieces().size()];
    // Runs of one class, of all lengths about a machine word's bits.
    if (random() % 32 == 0) text += std::string(random() % 140, "a 1.\n"[random() % 5]);
  }
  return text;
}

}  // namespace flashstep
