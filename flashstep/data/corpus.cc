#include "flashstep/data/corpus.h"

#include <algorithm>
#include <functional>
#include <strings.h>

#include "flashstep/base/text.h"
#include "flashstep/data/cut.h"
#include "flashstep/data/manifest.h"
#include "flashstep/data/stories.h"
#include "flashstep/data/tinystories.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

// The name that iconv has for text of two bytes a character, most of them ASCII, and for text that
// begins with a wide byte order mark; empty: another.
std::string wide_encoding(std::string_view bytes) {
  using std::string_view_literals::operator""sv;
  if (bytes.starts_with("\xFF\xFE\0\0"sv) || bytes.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF")) return "UTF-16";
  size_t zeros[2] = {};  // at even and odd places
  for (size_t i = 0; i < bytes.size(); ++i) zeros[i % 2] += bytes[i] == '\0';
  const size_t most = bytes.size() / 4;  // of a half
  if (zeros[0] == 0 && zeros[1] > most) return "UTF-16LE";
  if (zeros[1] == 0 && zeros[0] > most) return "UTF-16BE";
  return "";
}

// What the file is instead of text, by the zero bytes where it begins; empty: it may be text.
std::string why_no_text(const fs::path& path) {
  constexpr size_t kProbeBytes = 8 << 10;
  const MappedFile file(path);
  const std::string_view bytes = file.bytes().substr(0, kProbeBytes);
  if (bytes.find('\0') == std::string_view::npos) return "";
  if (bytes.starts_with("\x1F\x8B")) return "a gzip file: unpack it with gunzip";
  const std::string encoding = wide_encoding(bytes);
  if (encoding.empty()) return "a file with a zero byte in its first 8 KiB";
  return str("what looks like ", encoding, ": make UTF-8 of it with iconv -f ", encoding,
             " -t UTF-8");
}

void require_text(const fs::path& path) {
  const std::string why = why_no_text(path);
  require(why.empty(), "[corpus] expected text in ", path.string(), ", got ", why);
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool leads_nowhere(const fs::path& path) {
  std::error_code error;
  return fs::is_symlink(path, error) && !fs::exists(path, error) && !error;
}

bool is_txt(const fs::path& path) {
  return path.extension().string().size() == 4 &&
         ::strcasecmp(path.extension().c_str(), ".txt") == 0;
}

struct Found {
  Paths files;
  int64_t linked_directories = 0;  // which are not gone into: a link may lead above itself
};

// All regular files with content, and links that lead nowhere or cannot be followed, below
// `directory`, hidden ones and what lies in them left out.
Found files_below(const fs::path& directory) {
  Found found;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error), end;
  while (!error && entry != end) {
    std::error_code unknown;  // a link into what this user may not look at
    const bool is_unknown = entry->status(unknown).type() == fs::file_type::unknown;
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (leads_nowhere(entry->path()) || is_unknown ||
               (entry->is_regular_file() && entry->file_size() > 0)) {
      found.files.push_back(entry->path());
    } else if (entry->is_symlink() && entry->is_directory()) {
      ++found.linked_directories;
    }
    entry.increment(error);
  }
  require(!error, "[corpus] cannot read the directory ", directory.string(), ": ", error.message());
  std::sort(found.files.begin(), found.files.end());
  return found;
}

void check_or_make(const CorpusOptions& options, const fs::path& manifest, const Stage& stage,
                   const std::function<void()>& make) {
  const Verdict verdict = holds(manifest, stage);
  if (verdict.holds) return;
  require(!options.only_check, "[corpus] expected the stage ", stage.name, " to be done, but ",
          verdict.why);
  if (verdict.is_of_others && options.may_replace) options.may_replace(verdict.why);
  make_directories(options.directory);
  const StageBegun begun = begin_stage(manifest, stage);
  if (!begun.kept.empty() && options.say) options.say(begun.kept);
  make();
  write_manifest(manifest, stage, begun);
}

Paths write_story_corpus(const CorpusOptions& options) {
  const fs::path path = options.directory / "stories.txt";
  const Stage stage = {"stories",
                       {{"generator", std::string(kStoriesVersion)},
                        {"bytes", str(options.stories_bytes)},
                        {"seed", str(options.stories_seed)}},
                       {},
                       {path}};
  check_or_make(options, manifest_path(path), stage, [&] {
    write_stories(path, options.stories_bytes, options.stories_seed, options.progress);
  });
  return {path};
}

Paths tinystories_file(const CorpusOptions& options, const RemoteFile& file) {
  if (options.only_check) return {fetched(file, options.directory)};
  return {fetch(file, options.directory, options.progress, options.say)};
}

std::string percent(double share) { return fixed(100 * share, share < 0.01 ? 3 : 1) + " %"; }

// Splits the one file that the cut goes through; the others are used where they are.
Corpus cut_validation(const CorpusOptions& options, const Paths& files) {
  const double fraction = options.validation_fraction;
  const Cut cut = find_cut(files, fraction, options.document_end);
  Corpus corpus;
  corpus.train.assign(files.begin(), files.begin() + static_cast<ptrdiff_t>(cut.file));
  corpus.validation.assign(files.begin() + static_cast<ptrdiff_t>(cut.file), files.end());
  const auto say = [&](const std::string& sentence) {
    if (options.say) options.say(str("[data] ", sentence));
  };
  if (!is_near(cut.share, fraction)) {
    say(str("NOTE: ", percent(cut.share), " of the text is held out, ", percent(fraction),
            " was asked for: no document and no line ends nearer"));
  }
  if (cut.offset == 0) return corpus;

  const fs::path& whole = files[cut.file];
  corpus.cut_within_document = cut.within_document;
  if (cut.within_document) {
    say(str("no ", json_spelling(options.document_end), " and no end of a file lies near the last ",
            percent(fraction), " of the text: ", whole.string(),
            " is cut before a line, what lies behind byte ", cut.offset, " is held out",
            hint_of_line_breaks(files, options.document_end)));
  }
  const fs::path head = options.directory / "train.txt",
                 tail = options.directory / "validation.txt";
  const Stage stage = {"validation", {{"cut at byte", str(cut.offset)}}, {whole}, {head, tail}};
  check_or_make(options, manifest_path(tail), stage, [&] {
    copy_range(whole, cut.offset, fs::file_size(whole), tail);
    copy_range(whole, 0, cut.offset, head, options.progress);
  });
  corpus.train.push_back(head);
  corpus.validation.front() = tail;
  return corpus;
}

}  // namespace

Paths text_files(const fs::path& path, const std::function<void(const std::string&)>& say) {
  std::error_code error;
  require(fs::exists(path, error),
          "[corpus] expected a text file, a directory, \"tinystories\" or ", "\"stories\", got \"",
          path.string(), "\", ",
          path.empty() ? "an empty name"
          : error      ? error.message()
                       : "which does not exist");
  if (!fs::is_directory(path, error)) {
    require(MappedFile(path).size_bytes() > 0, "[corpus] expected text, got the empty file ",
            path.string());
    require_text(path);
    return {path};
  }
  auto [files, linked_directories] = files_below(path);
  const bool any_txt = std::any_of(files.begin(), files.end(), is_txt);
  const size_t left_out = std::erase_if(files, [&](const fs::path& file) {
    if (any_txt && !is_txt(file)) return true;
    require(!leads_nowhere(file), "[corpus] expected text in ", file.string(),
            ", got a link that leads nowhere");
    if (any_txt) require_text(file);
    return !any_txt && !why_no_text(file).empty();
  });
  require(!files.empty(), "[corpus] expected text files with content in the directory ",
          path.string(), ", got none");
  if (say) {
    const char* rule = any_txt ? ".txt files only, as there are some" : "those with a zero byte";
    say(str("[data] ", files.size(), files.size() == 1 ? " file of " : " files of ", path.string(),
            " read", left_out > 0 ? str(", ", left_out, " left out: ", rule) : "",
            linked_directories == 0
                ? ""
                : str("; linked directories, not gone into: ", linked_directories)));
  }
  return files;
}

void refuse_own_outputs(const fs::path& input, const fs::path& directory, const char* field) {
  std::error_code error;
  const fs::path own = fs::weakly_canonical(directory, error), given = fs::weakly_canonical(input);
  if (fs::is_directory(given, error)) {
    const auto holds = [](const fs::path& outer, const fs::path& inner) {
      return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
             outer.end();
    };
    // What is made from the text would be text of the next run, held-out text among it.
    require(!holds(own, given) && !holds(given, own), "[corpus] expected ", field,
            " and text.directory to lie apart, got ", input.string(), " and ", directory.string(),
            ", one in the other: what is written would be read as text");
    return;
  }
  // By file, not by name: a link to one of them is one of them.
  for (const char* name :
       {"train.txt", "validation.txt", "stories.txt", "train.npy", "validation.npy", "lock",
        "tokenizer/vocab.json", "tokenizer/merges.txt", "tokenizer/tokenizer.json"}) {
    require(!fs::equivalent(input, directory / name, error), "[corpus] expected ", field,
            " other than what is written itself, got ", input.string(), ", which is ", name,
            " of text.directory: rename it, or give another text.directory");
  }
}

void require_texts_apart(const CorpusOptions& options) {
  if (options.source != "tinystories" && options.source != "stories") {
    refuse_own_outputs(options.source, options.directory, "text.source");
  }
  if (!options.validation.empty()) {
    refuse_own_outputs(options.validation, options.directory, "text.validation");
  }
}

Corpus prepare_corpus(const CorpusOptions& options) {
  const bool from_tinystories = options.source == "tinystories";
  const TinyStories remote = tinystories(options.base_url);
  require_texts_apart(options);
  Paths files;
  if (from_tinystories) {
    files = tinystories_file(options, remote.train);
  } else if (options.source == "stories") {
    files = write_story_corpus(options);
  } else {
    files = text_files(options.source, options.say);
  }
  if (!options.validation.empty()) return {files, text_files(options.validation, options.say)};
  if (from_tinystories) return {files, tinystories_file(options, remote.validation)};
  return cut_validation(options, files);
}

}  // namespace flashstep
