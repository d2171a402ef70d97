// TinyStories by name: the GPT-4 part of version 2 of the corpus of Eldan and Li, "TinyStories: How
// small can language models be and still speak coherent English?" (2023), as published in
// https://huggingface.co/datasets/roneneldan/TinyStories. Sizes are known here; of the contents the
// SHA-256 that the publisher's server sends with them is all that is checked. Where a mirror sends
// none, that is said.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "flashstep/base/progress.h"

namespace flashstep {

struct RemoteFile {
  std::string name, url;
  std::optional<uint64_t> size_bytes;  // known for the publisher's own address only
};

struct TinyStories {
  RemoteFile train, validation;
};

// `base_url` is the folder that holds the two files; empty: that of the environment variable
// FLASHSTEP_TINYSTORIES_URL, else the publisher's.
TinyStories tinystories(std::string base_url = "");

// Downloads `file` into `directory` (created if missing) unless it is there, and returns its path.
// A manifest beside it records what came; a file that disagrees with it, or with the size known,
// is refused (UserError) rather than overwritten. Other failures: download(). `say` gets a sentence
// when no checksum came with what was downloaded.
std::filesystem::path fetch(const RemoteFile& file, const std::filesystem::path& directory,
                            const ProgressFunction& progress = {},
                            const std::function<void(const std::string&)>& say = {});

// The path of fetch()'s file, checked in the same way but never downloaded: UserError when it is
// missing.
std::filesystem::path fetched(const RemoteFile& file, const std::filesystem::path& directory);

}  // namespace flashstep
