#include "flashstep/detail/files.h"

#include <fcntl.h>
#include <fstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/hash.h"
#include "flashstep/error.h"
#include "flashstep/testing/full_disk.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() : directory_(fs::path(::testing::TempDir()) / str("files_test_", ::getpid())) {
    fs::create_directories(directory_);
  }
  ~FilesTest() override { fs::remove_all(directory_); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), {}));
  }

  fs::path directory_;
};

TEST_F(FilesTest, CommitMakesTheWholeFileAppear) {
  const fs::path path = directory_ / "x";
  AtomicFile file(path);
  const std::string big(3'000'001, 'a');  // more than the buffer, and no multiple of it
  file.write("head");
  file.write(big);
  file.write("tail");
  file.overwrite(0, "HEAD", 4);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(file.size_bytes(), big.size() + 8);
  file.commit();
  EXPECT_EQ(read_file(path), "HEAD" + big + "tail");
  EXPECT_EQ(MappedFile(path).bytes(), "HEAD" + big + "tail");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, WithoutCommitTheOldFileStaysAndNothingIsLeft) {
  const fs::path path = directory_ / "x";
  write_file(path, "old");
  { AtomicFile(path).write("new"); }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(), 1u);
  AtomicFile file(path);
  file.write("abc");
  EXPECT_THROW(file.overwrite(2, "xy", 2), UserError);  // beyond what was written
}

TEST_F(FilesTest, SeveralFilesChangeTogetherOrNotAtAll) {
  const fs::path first = directory_ / "first", second = directory_ / "second";
  write_files({{first, "old"}, {second, "old"}});
  {
    const testing::FullDisk full(1000);
    EXPECT_THROW(write_files({{first, "new"}, {second, std::string(1001, 'x')}}), MachineError);
  }
  EXPECT_EQ(read_file(first), "old");
  EXPECT_EQ(read_file(second), "old");
  write_files({{first, "new"}, {second, "new"}});
  EXPECT_EQ(read_file(first) + read_file(second), "newnew");
  EXPECT_EQ(entries(), 2u);
}

TEST_F(FilesTest, WhatAKilledWriterLeftIsRemovedWhatALivingOneWritesIsNot) {
  const fs::path path = directory_ / "x";
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(path);
    file.write("half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(entries(), 1u);  // the temporary file
  AtomicFile living(path);
  EXPECT_EQ(entries(), 1u) << "the dead one's is gone, the living one's is there";
  living.write("first");
  write_file(path, "second");
  living.commit();
  EXPECT_EQ(read_file(path), "first");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, OnlyWhatTemporaryFilesAreNamedAndAreIsRemoved) {
  const auto place = [&](const char* name) { return directory_ / name; };
  for (const char* name : {".x.tmp-1", ".x.tmp-draft", ".x.tmp-1-", ".x.tmp--2", ".x.tmp-1-2a",
                           ".y.tmp-1-2", "x.tmp-1-2", "target"}) {
    std::ofstream(place(name)) << "mine";
  }
  fs::create_symlink("target", place(".x.tmp-1-3"));
  ASSERT_EQ(::mkfifo(place(".x.tmp-1-4").c_str(), 0600), 0);
  fs::create_directory(place(".x.tmp-1-5"));
  const size_t before = entries();
  std::ofstream(place(".x.tmp-1-2")) << "left by a killed process";
  write_file(place("x"), "new");
  EXPECT_EQ(entries(), before + 1) << "all but the last, and the new file";
  EXPECT_FALSE(fs::exists(place(".x.tmp-1-2")));
}

TEST_F(FilesTest, PermissionsOfWhatIsReplacedStay) {
  const fs::path path = directory_ / "x";
  write_file(path, "");
  fs::permissions(path, fs::perms(0600));
  write_file(path, "new");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms(0600));
  EXPECT_EQ(read_file(path), "new");
}

// The names of temporary files are longer than those of the files.
TEST_F(FilesTest, NamesMayBeAsLongAsTheSystemAllows) {
  const fs::path path = directory_ / std::string(255, 'x');
  std::ofstream(directory_ / ("." + std::string(215, 'x') + ".tmp-1-2"))
      << "left by a killed process";
  write_file(path, "whole");
  EXPECT_EQ(read_file(path), "whole");
  EXPECT_EQ(entries(), 1u);
}

// Another container, whose processes have the same numbers, may write the same file meanwhile.
TEST_F(FilesTest, TemporaryFilesOfOthersStay) {
  std::vector<int> locked;
  for (int number = 0; number < 300; ++number) {
    const fs::path path = directory_ / str(".x.tmp-", ::getpid(), "-", number);
    locked.push_back(::open(path.c_str(), O_RDWR | O_CREAT, 0644));
    ASSERT_EQ(::flock(locked.back(), LOCK_EX), 0);
  }
  write_file(directory_ / "x", "new");
  EXPECT_EQ(read_file(directory_ / "x"), "new");
  EXPECT_EQ(entries(), 301u);
  for (const int descriptor : locked) ::close(descriptor);
}

TEST_F(FilesTest, FailuresNameTheFileAndTheReason) {
  try {
    write_file(directory_ / "missing" / "x", "");
    FAIL() << "expected an error";
  } catch (const MachineError& error) {
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("missing/x"), std::string::npos) << error.what();
  }
  EXPECT_THROW(read_file(directory_ / "none"), UserError);
  EXPECT_THROW(read_file(directory_), UserError);
  EXPECT_THROW(MappedFile(directory_ / "none"), UserError);
  EXPECT_THROW((MappedFile(directory_)), UserError);
  std::ofstream(directory_ / "file") << "x";
  EXPECT_THROW(make_directories(directory_ / "file" / "below"), MachineError);
}

// Before anybody writes into it.
TEST_F(FilesTest, APipeIsNoFileToMap) {
  const fs::path path = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ::alarm(20);  // rather than for ever
  try {
    const MappedFile mapped(path);
    FAIL() << "expected an error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("a pipe or device"), std::string::npos);
  }
  ::alarm(0);
}

TEST_F(FilesTest, EmptyFilesAreFiles) {
  write_file(directory_ / "empty", "");
  EXPECT_EQ(read_file(directory_ / "empty"), "");
  const MappedFile mapped(directory_ / "empty");
  EXPECT_EQ(mapped.size_bytes(), 0u);
  mapped.release_before(10);
  // The published XXH3-128 of no bytes with seed 0.
  EXPECT_EQ(hash_file(directory_ / "empty"), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_bytes(""), "99aa06d3014798d86001c324468d497f");
}

TEST_F(FilesTest, HashOfAFileIsThatOfItsBytes) {
  std::string bytes(40'000'003, '\0');  // more than two of the chunks it is read in
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  write_file(directory_ / "x", bytes);
  EXPECT_EQ(hash_file(directory_ / "x"), hash_bytes(bytes));
  bytes[39'000'000] ^= 1;
  EXPECT_NE(hash_file(directory_ / "x"), hash_bytes(bytes));
}

TEST_F(FilesTest, LockRefusesASecondProcessAndDiesWithTheFirst) {
  const fs::path path = directory_ / "lock";
  int ready[2], done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    FileLock lock(path, "busy");
    char byte = 'x';
    if (::write(ready[1], &byte, 1) != 1) ::_exit(3);
    if (::read(done[0], &byte, 1) != 1) ::_exit(4);
    ::_exit(0);  // no destructor: the kernel releases the lock
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  try {
    FileLock second(path, "this run is in use");
    FAIL() << "expected the lock to be refused";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "this run is in use");
  }
  ASSERT_EQ(::write(done[1], "x", 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  FileLock now_free(path, "busy");
}

}  // namespace
}  // namespace flashstep
