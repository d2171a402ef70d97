#include "flashstep/tokenizer/encode.h"

#include <algorithm>

#include "flashstep/error.h"

namespace flashstep {

void Encoder::encode(std::string_view text, TokenBuffer& out) {
  out.reserve(out.size + text.size() + 2);  // a token is a byte or more; + 2: see encode_words()
  tokenizer_.specials().split(
      text, [&](std::string_view words) { encode_words(words, out); },
      [&](uint32_t id) { out.ids[out.size++] = id; });
}

void Encoder::encode_words(std::string_view text, TokenBuffer& out) {
  const char* text_end = text.data() + text.size();
  scanner_.for_each_word(text, [&](std::string_view word) {
    if (word.size() > kLongestCached) {
      append_uncached(word, out);
      return;
    }
    bool is_new;
    Span& span = cache_.find_or_insert(word, text_end, is_new);
    if (is_new) span = span_of_new_word(word);
    // Most words have one or two tokens: both places are written, whatever the number, to spare a
    // branch.
    if (span.count <= 2) {
      out.ids[out.size] = span.ids[0];
      out.ids[out.size + 1] = span.ids[1];
    } else {
      std::copy_n(spans_.data() + span.ids[0], span.count, out.ids.get() + out.size);
    }
    out.size += span.count;
    if (is_new && cache_.size_bytes() + spans_.size() * sizeof(uint32_t) > kCacheBytes) {
      cache_.clear();
      spans_.clear();
    }
  });
}

Encoder::Span Encoder::span_of_new_word(std::string_view word) {
  tokenize(word);
  Span span{static_cast<uint32_t>(tokens_.size()), {}};
  if (tokens_.size() <= 2) {
    std::copy(tokens_.begin(), tokens_.end(), span.ids);
  } else {
    span.ids[0] = static_cast<uint32_t>(spans_.size());
    spans_.insert(spans_.end(), tokens_.begin(), tokens_.end());
  }
  return span;
}

void Encoder::append_uncached(std::string_view word, TokenBuffer& out) {
  tokenize(word);
  std::copy(tokens_.begin(), tokens_.end(), out.ids.get() + out.size);
  out.size += tokens_.size();
}

void Encoder::tokenize(std::string_view word) {
  tokens_.clear();
  if (tokenizer_.vocabulary().ignore_merges) {
    if (const auto id = tokenizer_.token_id(word)) {
      tokens_.push_back(*id);
      return;
    }
  }
  for (const char byte : word) {
    const uint32_t id = tokenizer_.byte_id(static_cast<uint8_t>(byte));
    if (id != Tokenizer::kNoToken) tokens_.push_back(id);
  }
  merger_.merge(tokens_, tokenizer_.rules());
}

uint64_t encode_files(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& texts,
                      const EncodeOptions& options,
                      const std::function<void(std::span<const uint32_t>)>& sink) {
  const int threads = thread_count(options.threads);
  std::vector<Encoder> encoders;
  for (int i = 0; i < threads; ++i) encoders.emplace_back(tokenizer);
  ChunkReader reader(texts, tokenizer.specials(), options.chunk_bytes, options.behind);
  uint64_t bytes_of_files = reader.total_bytes();
  for (const std::string& text : options.behind) bytes_of_files -= text.size();
  require(bytes_of_files > 0, "[tokenizer encode] expected text, got ", texts.size(),
          texts.size() == 1 ? " empty file" : " empty files");
  uint64_t total = 0;
  process_chunks(
      reader, threads,
      [&](int worker, std::string_view text, TokenBuffer& out) {
        encoders[static_cast<size_t>(worker)].encode(text, out);
      },
      [&](const TokenBuffer& out) {
        total += out.size;
        sink({out.ids.get(), out.size});
      },
      options.progress);
  require(total > 0, "[tokenizer encode] expected text that has tokens, got ", bytes_of_files,
          " bytes without any");
  return total;
}

}  // namespace flashstep
