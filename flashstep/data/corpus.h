// Where text comes from: a file, a directory, TinyStories or the built-in stories, and the part of
// it that is held out for validation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/base/progress.h"

namespace flashstep {

// Ends a document in the corpora that this program knows.
inline constexpr std::string_view kDocumentEnd = "<|endoftext|>";

struct CorpusOptions {
  std::string source;      // a file, a directory, "tinystories" or "stories"
  std::string validation;  // a file or a directory; empty: TinyStories' own, else cut from `source`
  double validation_fraction = 0.05;  // of the bytes, when cut
  std::string document_end{kDocumentEnd};
  std::filesystem::path directory;  // where text is put that is fetched, written or cut
  uint64_t stories_bytes = 20'000'000, stories_seed = 1;  // for "stories"
  std::string base_url;                                   // for "tinystories": tinystories.h
  // Nothing is fetched, written or cut: what is missing or disagrees is a UserError.
  bool only_check = false;
  // Asked before something is made anew of another text, or otherwise; throws if it shall not be.
  std::function<void(const std::string& why)> may_replace;
  ProgressFunction progress;                    // bytes
  std::function<void(const std::string&)> say;  // what a user should know of the text
};

struct Corpus {
  std::vector<std::filesystem::path> train, validation;  // neither is empty; in reading order
  bool cut_within_document = false;                      // then the last of `train` ends none
};

// UserError if `input`, a file or directory of text, is what a run writes into `directory` (the
// text's parts, tokenizer and tokens), or holds it: the run would overwrite it, or read its own
// output.
void refuse_own_outputs(const std::filesystem::path& input, const std::filesystem::path& directory,
                        const char* field);

// UserError if a text is, or lies where, what is made in options.directory; touches nothing.
void require_texts_apart(const CorpusOptions& options);

// Makes what is not there yet, each part with a manifest beside it by which the next call skips it.
// UserError for a source that is missing, unreadable, empty, or what refuse_own_outputs() refuses,
// or that cannot be cut; and where a file lies in the way that somebody else made.
Corpus prepare_corpus(const CorpusOptions& options);

// `path` itself if it is a file. The text files of a directory and all below it, sorted by path:
// those that end in .txt, in any case, where there are any, else all without a zero byte in their
// first 8 KiB; hidden and empty files are left out. `say` is told how many of a directory's files
// are read, and how many left out. UserError if there is none, for a link among them that leads
// nowhere, and for a file, or one that ends in .txt, with a zero byte in its first 8 KiB: that is
// no text, or UTF-16.
std::vector<std::filesystem::path> text_files(
    const std::filesystem::path& path, const std::function<void(const std::string&)>& say = {});

}  // namespace flashstep
