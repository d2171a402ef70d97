#include "flashstep/tokenizer/chunks.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "flashstep/error.h"
#include "flashstep/tokenizer/words.h"

namespace flashstep {

size_t find_chunk_end(std::string_view text, size_t begin, size_t target_bytes,
                      const SpecialTokens& specials) {
  if (text.size() - begin <= target_bytes) return text.size();
  const size_t target = begin + target_bytes;
  size_t ahead = 4096;  // how far behind the target to look; doubled inside a long word
  while (begin < target) {
    // Specials that begin in the window are wholly visible.
    const size_t window_end = std::min(text.size(), target + ahead);
    auto special = specials.find(text.substr(0, window_end + specials.longest_bytes()), begin);
    if (special && special->begin >= window_end) special.reset();
    if (special && special->begin < target) {
      begin = special->end;
      continue;
    }
    const size_t words_end = special ? special->begin : window_end;
    const size_t cut = begin + find_cut(text.substr(begin, words_end - begin), target - begin);
    // A character that the window cuts off (4 bytes at most) would look malformed.
    if (special || window_end == text.size() || cut + 4 <= window_end) return cut;
    ahead *= 2;
  }
  return begin;
}

ChunkReader::ChunkReader(std::vector<std::filesystem::path> files, const SpecialTokens& specials,
                         size_t target_bytes, std::vector<std::string> behind)
    : files_(std::move(files)),
      specials_(specials),
      target_bytes_(target_bytes),
      behind_(std::move(behind)) {
  require(target_bytes >= 1, "[tokenizer] expected chunk_bytes of at least 1, got ", target_bytes);
  require(behind_.empty() || behind_.size() == files_.size(), "[tokenizer] expected text to put ",
          "behind each of ", files_.size(), " files, got ", behind_.size());
  for (const std::filesystem::path& file : files_) total_bytes_ += MappedFile(file).size_bytes();
  for (const std::string& text : behind_) total_bytes_ += text.size();
}

bool ChunkReader::next(Chunk& chunk, size_t kept_chunks) {
  while (file_ == nullptr || begin_ == file_->size_bytes()) {
    if (file_ != nullptr) {
      file_->check_size();
      file_ = nullptr;
      if (!behind_.empty() && !behind_[next_file_ - 1].empty()) {
        chunk = {nullptr, behind_[next_file_ - 1]};
        return true;
      }
    }
    if (next_file_ == files_.size()) return false;
    file_ = std::make_shared<const MappedFile>(files_[next_file_++]);
    begin_ = 0;
  }
  file_->check_size();
  const size_t kept_bytes = kept_chunks * target_bytes_;
  if (begin_ > kept_bytes) file_->release_before(begin_ - kept_bytes);
  const size_t end = find_chunk_end(file_->bytes(), begin_, target_bytes_, specials_);
  chunk = {file_, file_->bytes().substr(begin_, end - begin_)};
  begin_ = end;
  return true;
}

int thread_count(int requested) {
  require(requested >= 0 && requested <= 1024, "[tokenizer] expected threads from 0 to 1024, got ",
          requested);
  if (requested > 0) return requested;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void TokenBuffer::reserve(size_t wanted) {
  if (wanted <= capacity) return;
  const size_t new_capacity = std::max(wanted, capacity + capacity / 2);
  auto larger = std::make_unique_for_overwrite<uint32_t[]>(new_capacity);
  std::copy_n(ids.get(), size, larger.get());
  ids = std::move(larger);
  capacity = new_capacity;
}

namespace {

using Work = std::function<void(int, std::string_view, TokenBuffer&)>;

// The chunks in work: slot i % slots.size() belongs to chunk i from when it is taken until it is
// delivered.
class Pipeline {
 public:
  Pipeline(ChunkReader& reader, int threads)
      : reader_(reader), slots_(static_cast<size_t>(2 * threads)) {}

  void run_worker(int worker, const Work& work) {
    try {
      Chunk chunk;
      while (Slot* slot = take(chunk)) {
        slot->text_bytes = chunk.text.size();
        slot->buffer.size = 0;
        work(worker, chunk.text, slot->buffer);
        chunk.file.reset();
        const std::lock_guard lock(mutex_);
        slot->is_done = true;
        changed_.notify_all();
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  void deliver_all(const std::function<void(const TokenBuffer&)>& deliver,
                   const ProgressFunction& progress) {
    uint64_t done_bytes = 0;
    for (size_t i = 0;; ++i) {
      Slot& slot = slots_[i % slots_.size()];
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return error_ || slot.is_done || (at_end_ && i == taken_); });
        if (error_ || !slot.is_done) return;
      }
      deliver(slot.buffer);
      done_bytes += slot.text_bytes;
      if (progress) progress(done_bytes, reader_.total_bytes());
      const std::lock_guard lock(mutex_);
      slot.is_done = false;
      ++delivered_;
      changed_.notify_all();
    }
  }

  void stop(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    changed_.notify_all();
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Slot {
    TokenBuffer buffer;
    uint64_t text_bytes = 0;
    bool is_done = false;
  };

  // The slot of the chunk taken, or nullptr when there is no more to do.
  Slot* take(Chunk& chunk) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || at_end_ || taken_ - delivered_ < slots_.size(); });
    if (error_ || at_end_) return nullptr;
    if (!reader_.next(chunk, slots_.size())) {
      at_end_ = true;
      changed_.notify_all();
      return nullptr;
    }
    return &slots_[taken_++ % slots_.size()];
  }

  ChunkReader& reader_;
  std::mutex mutex_;  // guards what follows, and the reader
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  size_t taken_ = 0, delivered_ = 0;
  bool at_end_ = false;
  std::exception_ptr error_;
};

}  // namespace

void process_chunks(ChunkReader& reader, int threads, const Work& work,
                    const std::function<void(const TokenBuffer&)>& deliver,
                    const ProgressFunction& progress) {
  if (threads == 1) {  // no second thread that would only wait
    Chunk chunk;
    TokenBuffer buffer;
    for (uint64_t done_bytes = 0; reader.next(chunk, 1);) {
      buffer.size = 0;
      work(0, chunk.text, buffer);
      deliver(buffer);
      done_bytes += chunk.text.size();
      if (progress) progress(done_bytes, reader.total_bytes());
    }
    return;
  }
  Pipeline pipeline(reader, threads);
  std::vector<std::jthread> workers;
  try {
    for (int worker = 0; worker < threads; ++worker) {
      workers.emplace_back([&, worker] { pipeline.run_worker(worker, work); });
    }
    pipeline.deliver_all(deliver, progress);
  } catch (...) {
    pipeline.stop(std::current_exception());
  }
  workers.clear();  // joins
  pipeline.rethrow();
}

}  // namespace flashstep
