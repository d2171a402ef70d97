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
// are read, and how many left out. UserError if there is none, or a link among them that leads
// nowhere.
std::vector<std::filesystem::path> text_files(
    const std::filesystem::path& path, const std::function<void(const std::string&)>& say = {});

// A place between two documents: `offset` bytes into files[file], or at its beginning (offset 0).
struct Cut {
  size_t file = 0;
  uint64_t offset = 0;
  bool within_document = false;  // there is only one: between two of its lines
};

// The first end of a document (`document_end` and the newlines behind it, or the end of a file) at
// or after the place where `fraction` of the bytes is left; the last one before it if nothing
// follows. White space is no document. A text of one document is cut before a line. UserError
// unless 0 < fraction < 1 and both parts get something.
Cut find_cut(const std::vector<std::filesystem::path>& files, double fraction,
             std::string_view document_end);

// Copies bytes [begin, end) of `from` into a new file `to`, streaming.
void copy_range(const std::filesystem::path& from, uint64_t begin, uint64_t end,
                const std::filesystem::path& to, const ProgressFunction& progress = {});

}  // namespace flashstep
