// Places on the disk that a command asks for before it begins long work.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "flashstep/detail/files.h"

namespace flashstep {

// Before work whose result goes to `path`: UserError if that is a directory, a device or a file
// that nobody may write, or lies in a directory that does not exist.
void require_place_for_file(const std::filesystem::path& path);

// Before work whose results go into the directory `path`, which may be missing: UserError if that
// or what it would lie in is a file, or cannot be written.
void require_place_for_directory(const std::filesystem::path& path);

// UserError if the two names, of what is read and of what is written, are one file.
void require_other_file(const std::filesystem::path& input, const std::filesystem::path& output);

// Before a file is replaced: UserError if what is there is no file of its kind, of whose bytes
// `read` throws UserError. An empty file is of any kind.
void require_same_kind(const std::filesystem::path& output, const char* kind,
                       const std::function<void(std::string_view bytes)>& read);

// Whether a file of this name is one of those that a directory of ours consists of.
using IsOurs = std::function<bool(std::string_view name)>;

// Whether `directory` is one, no link to one, with nothing in it but such files, finished or begun.
bool is_all_ours(const std::filesystem::path& directory, const IsOurs& is_ours);

// Removes `directory` if all of it is ours; what somebody else has put there stays as it is. The
// only way in which flashstep removes directories that a user sees. MachineError if it cannot.
void remove_if_ours(const std::filesystem::path& directory, const IsOurs& is_ours);

// The lock on `path` as soon as nobody else holds it; until then `while_waiting` is called ten
// times a second, and may throw.
std::unique_ptr<FileLock> wait_for_lock(const std::filesystem::path& path,
                                        const std::function<void()>& while_waiting);

}  // namespace flashstep
