// What a token file or a text consists of, counted in one pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "flashstep/detail/token_file.h"

namespace flashstep {

struct TokenStatistics {
  uint64_t tokens = 0, distinct = 0;
  uint32_t smallest = 0, largest = 0;                    // 0 in an empty file
  std::vector<std::pair<uint32_t, uint64_t>> commonest;  // (id, count), most frequent first
};

// `top`: how many of the commonest ids to keep; ties go to the smaller id.
TokenStatistics token_statistics(const TokenFile& file, size_t top);

struct TextStatistics {
  uint64_t bytes = 0, lines = 0, documents = 0;
};

// Lines end in '\n', documents in `document_end`; text behind the last of either counts as one more
// (white space does not make a document). UserError if the file cannot be read.
TextStatistics text_statistics(const std::filesystem::path& path, std::string_view document_end);

}  // namespace flashstep
