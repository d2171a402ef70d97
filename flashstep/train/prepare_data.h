// From text to what a run reads: text -> tokenizer -> tokens. A file ends a document: in the tokens
// text.document_end follows each that does not end with it itself. Each stage leaves a manifest
// beside what it made (data/manifest.h) and is skipped while that holds.
#pragma once

#include <filesystem>
#include <vector>

#include "flashstep/detail/token_file.h"
#include "flashstep/tokenizer.h"
#include "flashstep/train/config.h"

namespace flashstep {

struct PreparedData {
  std::vector<std::filesystem::path> train_text, validation_text;  // empty if the tokens were given
  Tokenizer tokenizer;
  // Mapped: another run that makes new files in the same directory leaves these as they are.
  TokenFile train_tokens, validation_tokens;
};

struct PrepareOptions {
  // Nothing is made: UserError with a sentence when a file is missing or disagrees with its
  // manifest.
  bool skip_data = false;
  bool quiet = false;  // no progress on stderr
  // The fingerprint of the tokens that a run which goes on has read; empty: there are none. Where
  // train.npy is these, nothing is made anew of another text: UserError.
  std::string read_tokens;
};

// What to tell people of a tokenizer that lacks bytes; empty: nothing.
std::string note_of_missing_bytes(const Tokenizer& tokenizer);

// Saves into `directory`, which appears whole or not at all and replaces one that was there.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& directory);

// Writes the tokens of `texts`, one after the other, to `output`, whole or not at all, and a
// manifest beside it that names the tokenizer. Returns their number. UserError where a file that is
// no manifest has its name.
uint64_t encode_to_file(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& texts,
                        const std::filesystem::path& output, const EncodeOptions& options);

// UserError if another tokenizer made this token file, as the manifest beside it says.
void require_tokens_of(const Tokenizer& tokenizer, const std::filesystem::path& tokens);

// config.text, config.tokenizer and config.tokens say what to do; what is made lies in
// config.text.directory: the text itself, tokenizer/, train.npy, validation.npy. Of several runs
// that share the directory one works at a time, the others wait and say so. Interrupted when a
// SignalGuard's signal came: what is finished stays, the same call goes on from there. UserError,
// before anything is made, where a file lies in the way that somebody else made: nothing is
// replaced but what a manifest says was made here.
PreparedData prepare_data(const Config& config, const PrepareOptions& options = {});

}  // namespace flashstep
