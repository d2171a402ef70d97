#include "flashstep/data/inspect.h"

#include <algorithm>
#include <span>
#include <unordered_map>

#include "flashstep/detail/files.h"

namespace flashstep {
namespace {

constexpr uint64_t kChunk = 4 << 20;  // tokens or bytes between two releases of memory

}  // namespace

TokenStatistics token_statistics(const TokenFile& file, size_t top) {
  // Most ids are small; a table of all 2^32 that a file may hold would not fit.
  std::vector<uint64_t> small(1 << 16);
  std::unordered_map<uint32_t, uint64_t> large;
  std::vector<uint32_t> chunk;
  for (uint64_t at = 0; at < file.size(); at += kChunk) {
    chunk.resize(std::min(kChunk, file.size() - at));
    file.read(at, std::span<uint32_t>(chunk));
    for (const uint32_t id : chunk) ++(id < small.size() ? small[id] : large[id]);
    file.release_before(at);
  }
  std::vector<std::pair<uint32_t, uint64_t>> counts(large.begin(), large.end());
  for (uint32_t id = 0; id < small.size(); ++id) {
    if (small[id] > 0) counts.emplace_back(id, small[id]);
  }

  TokenStatistics result;
  result.tokens = file.size();
  result.distinct = counts.size();
  if (counts.empty()) return result;
  const auto [smallest, largest] = std::minmax_element(counts.begin(), counts.end());
  result.smallest = smallest->first;
  result.largest = largest->first;
  const size_t kept = std::min(top, counts.size());
  std::partial_sort(counts.begin(), counts.begin() + static_cast<ptrdiff_t>(kept), counts.end(),
                    [](const auto& a, const auto& b) {
                      return a.second != b.second ? a.second > b.second : a.first < b.first;
                    });
  counts.resize(kept);
  result.commonest = std::move(counts);
  return result;
}

TextStatistics text_statistics(const std::filesystem::path& path, std::string_view document_end) {
  const MappedFile file(path);
  const std::string_view text = file.bytes();
  TextStatistics result;
  result.bytes = text.size();
  for (size_t at = 0; at < text.size(); at += kChunk) {
    const std::string_view chunk = text.substr(at, kChunk);
    result.lines += static_cast<uint64_t>(std::count(chunk.begin(), chunk.end(), '\n'));
    file.release_before(at);
  }
  if (!text.empty() && text.back() != '\n') ++result.lines;

  size_t rest = 0, released = 0;
  for (size_t found; (found = text.find(document_end, rest)) != std::string_view::npos;) {
    ++result.documents;
    rest = found + document_end.size();
    if (rest - released > kChunk) file.release_before(released = rest);
  }
  if (text.find_first_not_of(" \t\r\n", rest) != std::string_view::npos) ++result.documents;
  return result;
}

}  // namespace flashstep
