#!/usr/bin/env python3
"""Writes flashstep/tokenizer/unicode_tables.inc: letters, numbers and white space of Unicode 16.

    python3 -m pip install unicodedata2==16.0.0
    python3 scripts/make_unicode_tables.py flashstep/tokenizer/unicode_tables.inc

GPT-2's pattern asks three questions of a code point: \\p{L} (general category L*), \\p{N} (N*) and \\s (the
property White_Space). The answer is a class from 0 to 3, kept as two bits: blocks of 64 code points, each
a pair of 64-bit masks (low bits, high bits), the distinct blocks once, found through an index.
"""
import sys

UNICODE = "16.0.0"
OTHER, LETTER, NUMBER, SPACE = range(4)
# PropList.txt, White_Space=Yes. Python's str.isspace() differs: it adds U+001C..U+001F.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
               0x202F, 0x205F, 0x3000}


def class_of(code_point, category):
    if code_point in WHITE_SPACE:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(category(chr(code_point))[0], OTHER)


def block(first, category):
    low = high = 0
    for i in range(64):
        value = class_of(first + i, category)
        low |= (value & 1) << i
        high |= (value >> 1) << i
    return low, high


def rows(values, per_row):
    for i in range(0, len(values), per_row):
        yield "    " + ", ".join(values[i:i + per_row]) + ","


def main():
    try:
        import unicodedata2
    except ImportError:
        sys.exit(f"expected the package unicodedata2=={UNICODE}: python3 -m pip install unicodedata2=={UNICODE}")
    if unicodedata2.unidata_version != UNICODE:
        sys.exit(f"expected Unicode {UNICODE}, got {unicodedata2.unidata_version} from unicodedata2")
    if len(sys.argv) != 2:
        sys.exit("usage: make_unicode_tables.py OUTPUT")
    blocks = [block(first, unicodedata2.category) for first in range(0, 0x110000, 64)]
    while blocks[-1] == (0, 0):  # everything behind the last letter is OTHER
        blocks.pop()
    distinct = list(dict.fromkeys(blocks))
    index = [distinct.index(b) for b in blocks]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write(f"// Made by scripts/make_unicode_tables.py from Unicode {UNICODE}. Do not edit.\n"
                  "// clang-format off\n"
                  f"constexpr uint32_t kFirstUnlisted = {len(blocks) * 64:#x};  // OTHER from here on\n"
                  f"constexpr uint16_t kBlockIndex[{len(index)}] = {{  // by code point / 64\n")
        out.write("\n".join(rows([str(i) for i in index], 24)))
        out.write("\n};\n"
                  f"constexpr ClassBits kBlocks[{len(distinct)}] = {{\n")
        out.write("\n".join(rows([f"{{{low:#x}, {high:#x}}}" for low, high in distinct], 2)))
        out.write("\n};\n// clang-format on\n")


if __name__ == "__main__":
    main()
