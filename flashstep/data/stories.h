// The built-in corpus: short English children's stories, written by rules of our own, without end
// and without a network. A story is a plot (a chain of beats that cause each other) told about
// characters, things and places drawn at random, with the words inflected and the pronouns kept
// straight.
//
// Everything is a pure function of (seed, story index), in integers, so that the same arguments
// give the same bytes on every machine and any story can be told without those before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/base/progress.h"

namespace flashstep {

// Names the generator in the manifests of what it wrote: the XXH3-128 of stories 0 to 1999 of seed
// 7, one behind the other. A test compares it with what is told today, so that no change of the
// book or of the generator leaves an old corpus in use.
inline constexpr std::string_view kStoriesVersion = "19ca2ad47d36f5c2fd970273c1fa5bd8";

// Appends story `index` of `seed`: ASCII, 60 to 350 words, paragraphs parted by an empty line, no
// newline at its end.
void append_story(uint64_t seed, uint64_t index, std::string& text);
std::string story(uint64_t seed, uint64_t index);

// Stories 0, 1, 2, ... of `seed`, each followed by "\n<|endoftext|>\n", until the file has at least
// `min_bytes` bytes. Progress counts bytes. UserError for min_bytes 0; MachineError if it cannot be
// written; then nothing stands under `path`.
void write_stories(const std::filesystem::path& path, uint64_t min_bytes, uint64_t seed,
                   const ProgressFunction& progress = {});

// The words of a text in lower case: runs of ASCII letters with apostrophes inside ("don't",
// "mia's").
std::vector<std::string> words_of(std::string_view text);

// Every word that can occur in a story, as words_of() gives it, sorted.
const std::vector<std::string>& story_words();

}  // namespace flashstep
