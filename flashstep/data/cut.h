// Where a text is cut in two, and its files with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/base/progress.h"

namespace flashstep {

// A place in a row of files: `offset` bytes into files[file], or at its beginning (offset 0).
struct Cut {
  size_t file = 0;
  uint64_t offset = 0;
  bool within_document = false;  // no document ends here: between two of its lines
  double share = 0;              // of all bytes, that lies behind it
};

// At least half and at most twice of the fraction asked for.
bool is_near(double share, double fraction);

// Where about `fraction` of the bytes is left: the next end of a document (`document_end` and the
// newlines behind it, or the end of a file), else the last one before, else the beginning of a
// line; the first of them that is_near(), and where none is, the nearest. White space is no
// document. UserError unless 0 < fraction < 1 and both parts get something.
Cut find_cut(const std::vector<std::filesystem::path>& files, double fraction,
             std::string_view document_end);

// What to add to a message where document_end holds a backslash and an n, which no file does: a
// line break was meant. Empty elsewhere.
std::string hint_of_line_breaks(const std::vector<std::filesystem::path>& files,
                                std::string_view document_end);

// Whether nothing but white space follows its last document's end, or it holds no text.
bool ends_document(const std::filesystem::path& file, std::string_view document_end);

// What to encode behind each file so that all end their document: `document_end`, or nothing.
std::vector<std::string> missing_ends(const std::vector<std::filesystem::path>& files,
                                      const std::string& document_end);

// Copies bytes [begin, end) of `from` into a new file `to`, streaming.
void copy_range(const std::filesystem::path& from, uint64_t begin, uint64_t end,
                const std::filesystem::path& to, const ProgressFunction& progress = {});

}  // namespace flashstep
