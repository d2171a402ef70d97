// Text files of any size as a row of chunks that can be worked on apart: cut where a special token
// begins or ends, or where two words meet whatever stands around, so that no result depends on the
// cutting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/base/progress.h"
#include "flashstep/detail/bpe.h"
#include "flashstep/detail/files.h"

namespace flashstep {

// Where the chunk that starts at `begin` (itself such a place) ends: at least `target_bytes` on,
// unless the text ends before. Only a single word, or a special token, makes it much longer.
size_t find_chunk_end(std::string_view text, size_t begin, size_t target_bytes,
                      const SpecialTokens& specials);

struct Chunk {
  std::shared_ptr<const MappedFile> file;  // keeps `text` alive; null where the reader does
  std::string_view text;
};

class ChunkReader {
 public:
  // `behind`: a chunk of its own to follow each file, where not empty; or none at all. UserError
  // for a file that is missing or unreadable, before anything else is done.
  ChunkReader(std::vector<std::filesystem::path> files, const SpecialTokens& specials,
              size_t target_bytes, std::vector<std::string> behind = {});

  // The next chunk in the order of the files; false at the end. Text that lies `kept_chunks` and
  // more behind it leaves memory again.
  bool next(Chunk& chunk, size_t kept_chunks);
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::vector<std::filesystem::path> files_;
  const SpecialTokens& specials_;
  size_t target_bytes_;
  std::vector<std::string> behind_;
  uint64_t total_bytes_ = 0;
  size_t next_file_ = 0;
  std::shared_ptr<const MappedFile> file_;
  size_t begin_ = 0;
};

// 0 stands for all processors.
int thread_count(int requested);

// Growing tokens whose room is reserved ahead, without a zero written first.
struct TokenBuffer {
  std::unique_ptr<uint32_t[]> ids;
  size_t size = 0, capacity = 0;

  void reserve(size_t wanted);
};

// Runs work(worker, text, buffer) for all chunks on `threads` threads, worker being 0..threads-1,
// and deliver(buffer) on the calling thread, in the order of the chunks; at most 2 * threads
// buffers wait. An exception from either ends the work and is thrown here. `progress` counts bytes
// of text.
void process_chunks(ChunkReader& reader, int threads,
                    const std::function<void(int, std::string_view, TokenBuffer&)>& work,
                    const std::function<void(const TokenBuffer&)>& deliver,
                    const ProgressFunction& progress);

}  // namespace flashstep
