// For tests of checkpoints: a directory of them, and what may happen to their files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/checkpoint.h"
#include "flashstep/error.h"

namespace flashstep {

namespace fs = std::filesystem;

// Root may read all: while this lives, root's test does what it does to the files in `root` as
// another user, whose files they become.
class OrdinaryUser {
 public:
  explicit OrdinaryUser(const fs::path& root) {
    if (::geteuid() != 0) return;
    EXPECT_EQ(::lchown(root.c_str(), kNobody, kNobody), 0);
    for (const auto& entry : fs::recursive_directory_iterator(root))
      EXPECT_EQ(::lchown(entry.path().c_str(), kNobody, kNobody), 0);
    ::setfsuid(kNobody);
  }
  ~OrdinaryUser() { ::setfsuid(::geteuid()); }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
};

// A file that nobody may read while this lives.
class Forbidden {
 public:
  explicit Forbidden(fs::path path)
      : path_(std::move(path)), before_(fs::status(path_).permissions()) {
    fs::permissions(path_, fs::perms::none);
  }
  ~Forbidden() {
    std::error_code ignored;  // it is there no more
    fs::permissions(path_, before_, ignored);
  }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;

 private:
  const fs::path path_;
  const fs::perms before_;
};

// While this lives the process can open one file more, and no second one with it.
class OneDescriptor {
 public:
  OneDescriptor() {
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(lowest);
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{static_cast<rlim_t>(lowest) + 1, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OneDescriptor() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  OneDescriptor(const OneDescriptor&) = delete;
  OneDescriptor& operator=(const OneDescriptor&) = delete;

 private:
  rlimit before_ = {};
};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest()
      : root_(fs::path(::testing::TempDir()) / str("checkpoint_test_", ::getpid())),
        checkpoints_(root_ / "checkpoints") {}
  ~CheckpointTest() override { fs::remove_all(root_); }

  static Checkpoint make(int64_t step) {
    const at::Tensor value = torch::full({3, 5}, static_cast<double>(step));
    return {step, {{"w", value}}, {{"w.exp_avg", value * 2}}, str("{\"seed\":", step, "}")};
  }
  void save(int64_t step, int64_t keep = 3) { save_checkpoint(checkpoints_, make(step), keep); }
  fs::path file(int64_t step, const char* name) const {
    return checkpoint_directory(checkpoints_, step) / name;
  }
  static void flip_byte(const fs::path& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get());
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
  }
  // The step that load_newest finds; -1 for none.
  int64_t newest() {
    warnings_.clear();
    const auto found =
        load_newest(checkpoints_, [&](const std::string& text) { warnings_.push_back(text); });
    if (!found) return -1;
    EXPECT_TRUE(torch::equal(found->model.at(0).second, make(found->step).model.at(0).second));
    return found->step;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(checkpoints_)) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  fs::path root_, checkpoints_;
  std::vector<std::string> warnings_;
};

}  // namespace flashstep
