#include "flashstep/train/metrics_log.h"

#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

uint64_t size_of(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_errno(errno, str("cannot examine ", path));
  return static_cast<uint64_t>(status.st_size);
}

void cut(int descriptor, uint64_t size_bytes, const std::filesystem::path& path) {
  while (::ftruncate(descriptor, static_cast<off_t>(size_bytes)) != 0) {
    if (errno != EINTR) throw_errno(errno, str("cannot shorten ", path));
  }
}

// The step of a line; nothing if it is no JSON object with a whole number as "step".
std::optional<int64_t> step_of(std::string_view line) {
  using Json = nlohmann::json;
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_unsigned()) return std::nullopt;
  const auto value = step->get<uint64_t>();
  if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(value);
}

struct Kept {
  uint64_t size_bytes = 0;
  int64_t last_step = -1;
};

// How much of `lines` is of steps up to `step`.
Kept find_end(std::string_view lines, int64_t step, const std::string& source) {
  Kept kept;
  for (int64_t number = 1; kept.size_bytes < lines.size(); ++number) {
    const size_t end = lines.find('\n', kept.size_bytes);
    const std::optional<int64_t> found =
        step_of(lines.substr(kept.size_bytes, end - kept.size_bytes));
    // A power failure may garble lines that were not synced: they are later than the checkpoint's
    // step.
    if (kept.last_step == step && !found) break;
    require(found.has_value(), "[metrics] ", source,
            ": expected a JSON object with a \"step\" in line ", number, ", got other text");
    require(*found >= kept.last_step, "[metrics] ", source, ": expected a step of at least ",
            kept.last_step, " in line ", number, ", got ", *found);
    if (*found > step) break;
    kept = {end + 1, *found};
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path) : path_(path) {
  const bool is_new = !std::filesystem::exists(path);
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_errno(errno, str("cannot open ", path));
  try {
    if (is_new) sync_directory(path.parent_path());
    const MappedFile lines(path);
    const size_t whole = lines.bytes().rfind('\n') + 1;  // npos + 1 == 0: no whole line
    if (whole != lines.size_bytes()) cut(descriptor_, whole, path_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MetricsLog::~MetricsLog() { ::close(descriptor_); }

int64_t MetricsLog::truncate_after(int64_t step) {
  const Kept kept = find_end(MappedFile(path_).bytes(), step, path_.string());
  cut(descriptor_, kept.size_bytes, path_);
  sync();
  return kept.last_step;
}

void MetricsLog::append(std::string_view object) {
  require(object.find('\n') == std::string_view::npos,
          "[metrics] expected an object without line breaks, got one with");
  require_in_place();
  write_at(size_of(descriptor_, path_), str(object, '\n'));
}

void MetricsLog::add_to_last(std::string_view members) {
  require_in_place();
  const std::string line = last() + "\n";
  const size_t brace = line.find_last_of('}');  // white space may follow
  require(brace != std::string::npos, "[metrics] ", path_.string(),
          ": expected a JSON object in the last line, got other text");
  const uint64_t end = size_of(descriptor_, path_) - line.size() + brace;
  const std::string rest = line.substr(brace);
  try {
    write_at(end, str(",", members, rest));
  } catch (const MachineError&) {
    write_at(end, rest);  // it has its place
    throw;
  }
}

std::string MetricsLog::last() const {
  const MappedFile lines(path_);
  const std::string_view whole = lines.bytes().substr(0, lines.bytes().rfind('\n') + 1);
  if (whole.empty()) return "";
  const size_t begin = whole.rfind('\n', whole.size() - 2) + 1;
  return std::string(whole.substr(begin, whole.size() - 1 - begin));
}

void MetricsLog::write_at(uint64_t begin, std::string_view bytes) {
  const uint64_t before = size_of(descriptor_, path_);
  size_t done = 0;
  while (done < bytes.size()) {  // once, unless the disk fills up
    const ssize_t written = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                     static_cast<off_t>(begin + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (done > 0) cut(descriptor_, before, path_);
      throw_errno(error, str("cannot write ", path_));
    }
    done += static_cast<size_t>(written);
  }
}

// A file that was removed takes writes like any other, and nobody ever sees them.
void MetricsLog::require_in_place() const {
  struct stat own {
  }, there{};
  if (::fstat(descriptor_, &own) != 0) throw_errno(errno, str("cannot examine ", path_));
  if (::stat(path_.c_str(), &there) != 0) throw_errno(errno, str("cannot write ", path_));
  if (own.st_dev != there.st_dev || own.st_ino != there.st_ino) {
    throw MachineError(str("cannot write ", path_, ": another file has taken its place"));
  }
}

void MetricsLog::sync() {
  require_in_place();
  if (::fsync(descriptor_) != 0) throw_errno(errno, str("cannot flush ", path_));
}

}  // namespace flashstep
