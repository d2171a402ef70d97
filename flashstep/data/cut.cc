#include "flashstep/data/cut.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr const char* kWhite = " \t\r\n";

bool is_newline(char c) { return c == '\n' || c == '\r'; }

// Whether there is more than white space and ends of documents.
bool holds_document(std::string_view text, std::string_view document_end) {
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
    if (!text.starts_with(document_end)) return !text.empty();
    text.remove_prefix(document_end.size());
  }
}

// The places of one file that the files may be cut at.
class Places {
 public:
  // `target`: the place in files[file] that is wanted. The last of the files holds a document.
  Places(std::span<const fs::path> files, size_t file, uint64_t target,
         std::string_view document_end)
      : document_end_(document_end),
        file_(file),
        mapped_(files[file]),
        text_(mapped_.bytes().substr(0, mapped_.bytes().find_last_not_of(kWhite) + 1)),
        target_(std::min<size_t>(target, text_.size())) {
    const auto has_document = [&](const fs::path& path) {
      return holds_document(MappedFile(path).bytes(), document_end);
    };
    const auto before = files.first(file);
    document_before_ = std::any_of(before.begin(), before.end(), has_document);
    document_behind_ = file + 1 < files.size();
    first_ = begin_of_document();
    last_ = text_.size();
    while (last_ > 0 && text_.substr(0, last_).ends_with(document_end))
      last_ = text_.substr(0, last_ - document_end.size()).find_last_not_of(kWhite) + 1;
    // The newlines behind an end belong to it, and the end may be right at the target.
    from_ = target_;
    while (from_ > 0 && is_newline(text_[from_ - 1])) --from_;
    from_ -= std::min(from_, document_end.size());
  }

  // The first end of a document that is not before the target.
  std::optional<Cut> next_end() const {
    if (target_ == 0 && document_before_) return at(0);
    for (size_t found, from = from_; (found = text_.find(document_end_, from)) != kNone;) {
      from = behind_end(found);
      if (const auto cut = at(from)) return cut;
    }
    return at(text_.size());
  }

  // The last one before it.
  std::optional<Cut> last_end() const {
    for (size_t found, before = from_;
         before > 0 && (found = text_.rfind(document_end_, before - 1)) != kNone; before = found) {
      if (const auto cut = at(behind_end(found))) return cut;
    }
    return at(0);
  }

  // The last line that begins at the target or before, else the first one behind it.
  std::optional<Cut> line() const {
    size_t newline = text_.substr(0, target_).rfind('\n');
    while (newline != kNone && !at(newline + 1)) newline = text_.substr(0, newline).rfind('\n');
    if (newline == kNone) newline = text_.find('\n', target_);
    while (newline != kNone && !at(newline + 1)) newline = text_.find('\n', newline + 1);
    if (newline == kNone) return std::nullopt;
    auto cut = at(newline + 1);
    cut->within_document = cut->file == file_;
    return cut;
  }

 private:
  static constexpr size_t kNone = std::string_view::npos;

  // Nothing where there is no document on one side.
  std::optional<Cut> at(size_t offset) const {
    if (!document_before_ && offset <= first_) return {};
    if (offset < last_) return Cut{file_, offset};
    if (document_behind_) return Cut{file_ + 1, 0};
    return {};
  }

  // Behind all white space and ends before it; the text's end where there is none.
  size_t begin_of_document() const {
    size_t at = 0;
    while (true) {
      at = std::min(text_.find_first_not_of(kWhite, at), text_.size());
      if (!text_.substr(at).starts_with(document_end_)) return at;
      at += document_end_.size();
    }
  }

  size_t behind_end(size_t found) const {
    size_t at = found + document_end_.size();
    while (at < text_.size() && is_newline(text_[at])) ++at;
    return at;
  }

  std::string_view document_end_;
  size_t file_;
  MappedFile mapped_;
  std::string_view text_;  // without the white space at its end, which is no document
  size_t first_, last_;    // where its first document begins, and behind its last one
  size_t target_, from_;   // ends that begin at from_ or behind do not end before target_
  bool document_before_, document_behind_;  // in files before this one, and behind it
};

}  // namespace

bool is_near(double share, double fraction) {
  return share >= fraction / 2 && share <= fraction * 2;
}

Cut find_cut(const Paths& files, double fraction, std::string_view document_end) {
  require(fraction > 0 && fraction < 1,
          "[corpus] expected a validation fraction between 0 and 1, got ", fraction);
  require(!document_end.empty(),
          "[corpus] expected the text that ends a document (text.document_end), got none");
  std::vector<uint64_t> begins = {0};  // of the files in the row, and the end
  for (const fs::path& file : files) {
    std::error_code error;
    const uint64_t size = fs::file_size(file, error);
    require(!error, "[corpus] cannot read ", file.string(), ": ", error.message());
    begins.push_back(begins.back() + size);
  }
  const auto total = static_cast<double>(begins.back());
  const uint64_t target = begins.back() - static_cast<uint64_t>(std::ceil(fraction * total));
  size_t count = files.size();
  while (count > 1 && !holds_document(MappedFile(files[count - 1]).bytes(), document_end)) --count;
  size_t file = 0;
  while (file + 1 < count && target >= begins[file + 1]) ++file;

  const auto texts = std::span<const fs::path>(files).first(count);
  const Places places(texts, file, target - begins[file], document_end);
  std::optional<Cut> nearest;
  for (const auto find : {&Places::next_end, &Places::last_end, &Places::line}) {
    std::optional<Cut> cut = (places.*find)();
    if (!cut) continue;
    cut->share = 1 - static_cast<double>(begins[cut->file] + cut->offset) / total;
    if (is_near(cut->share, fraction)) return *cut;
    const auto distance = [&](const Cut& from) { return std::abs(from.share - fraction); };
    if (!nearest || distance(*cut) < distance(*nearest)) nearest = cut;
  }
  if (!nearest) {
    throw UserError(str(
        "[corpus] expected at least two documents, each ended by ", json_spelling(document_end),
        ", or two lines, to hold one out for validation, got one in ", files[file].string(),
        ": set text.validation to a file of its own, or text.document_end to what ends a document "
        "there",
        hint_of_line_breaks(files, document_end)));
  }
  return *nearest;
}

std::string hint_of_line_breaks(const Paths& files, std::string_view document_end) {
  if (!contains(document_end, "\\n") || contains(document_end, "'")) return "";
  for (const fs::path& file : files) {
    if (contains(MappedFile(file).bytes(), document_end)) return "";
  }
  return str("; a shell leaves \\n as it is, for line breaks write text.document_end=$'",
             printable_utf8(document_end), "'");
}

bool ends_document(const fs::path& file, std::string_view document_end) {
  const MappedFile mapped(file);
  const size_t end = mapped.bytes().find_last_not_of(kWhite) + 1;
  if (end == 0) return true;
  // No earlier than this begins an end that may be white space itself, and is behind all the rest.
  const size_t from = end - std::min(end, document_end.size());
  return mapped.bytes().find(document_end, from) != std::string_view::npos;
}

std::vector<std::string> missing_ends(const std::vector<fs::path>& files,
                                      const std::string& document_end) {
  std::vector<std::string> ends;
  for (const fs::path& file : files)
    ends.push_back(ends_document(file, document_end) ? "" : document_end);
  return ends;
}

void copy_range(const fs::path& from, uint64_t begin, uint64_t end, const fs::path& to,
                const ProgressFunction& progress) {
  constexpr uint64_t kChunkBytes = 4 << 20;
  const MappedFile source(from);
  AtomicFile copy(to);
  for (uint64_t at = begin; at < end; at += kChunkBytes) {
    copy.write(source.bytes().substr(at, std::min(kChunkBytes, end - at)));
    source.check_size();
    source.release_before(at);
    if (progress) progress(std::min(at + kChunkBytes, end) - begin, end - begin);
  }
  copy.commit();
}

}  // namespace flashstep
