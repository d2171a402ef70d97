#include "flashstep/base/places.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "flashstep/error.h"

namespace flashstep {

void require_place_for_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  // A finished file takes the place of what has its name, /dev/null included.
  const auto there = std::filesystem::status(path, error);
  require(!std::filesystem::exists(there) || std::filesystem::is_regular_file(there),
          "expected the name of a file to write, got ",
          std::filesystem::is_directory(there) ? "the directory " : "the device ", path);
  constexpr auto kWrite = std::filesystem::perms::owner_write |
                          std::filesystem::perms::group_write |
                          std::filesystem::perms::others_write;
  require(!std::filesystem::exists(there) ||
              (there.permissions() & kWrite) != std::filesystem::perms::none,
          "expected the name of a file to write, got ", path, ", which is read-only");
  require(std::filesystem::is_directory(folder, error), "expected to write ", path,
          " into a directory, but there is no ", folder);
}

void require_place_for_directory(const std::filesystem::path& path) {
  std::error_code error;
  auto there = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) {
    require(!error, "expected a directory to write ", path, " into, got ", there, ": ",
            error.message());
    there = there.parent_path();
  }
  require(std::filesystem::is_directory(there, error), "expected a directory for ", path,
          ", got the file ", there);
  const bool can_write = ::access(there.c_str(), W_OK | X_OK) == 0;
  const int reason = errno;
  require(can_write, "expected a directory that can be written for ", path, ", got ", there, ": ",
          std::strerror(reason));
}

void require_other_file(const std::filesystem::path& input, const std::filesystem::path& output) {
  std::error_code error;  // a missing one is another
  require(!std::filesystem::equivalent(input, output, error),
          "expected to write another file than ", input, ", which is read");
}

void require_same_kind(const std::filesystem::path& output, const char* kind,
                       const std::function<void(std::string_view bytes)>& read) {
  if (!std::filesystem::is_regular_file(output)) return;
  const MappedFile there(output);
  if (there.size_bytes() == 0) return;
  try {
    read(there.bytes());
  } catch (const UserError&) {
    throw UserError(str("expected a new file, or ", kind, " to replace, got ", output,
                        ", another kind of file"));
  }
}

bool is_all_ours(const std::filesystem::path& directory, const IsOurs& is_ours) {
  std::error_code error;
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(directory, error)))
    return false;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto status = entry->symlink_status(error);
    if (!std::filesystem::is_regular_file(status) || !is_ours(name_when_finished(name)))
      return false;
  }
  return !error;  // what cannot be seen is not known to be ours
}

void remove_if_ours(const std::filesystem::path& directory, const IsOurs& is_ours) {
  if (!is_all_ours(directory, is_ours)) return;
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (error) throw MachineError(str("cannot remove ", directory, ": ", error.message()));
}

std::unique_ptr<FileLock> wait_for_lock(const std::filesystem::path& path,
                                        const std::function<void()>& while_waiting) {
  while (true) {
    try {
      return std::make_unique<FileLock>(path, "held");
    } catch (const UserError&) {  // it is held; all else is a MachineError
    }
    while_waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace flashstep
