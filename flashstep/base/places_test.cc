#include "flashstep/base/places.h"

#include <memory>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class PlacesTest : public ::testing::Test {
 protected:
  PlacesTest() { fs::create_directories(directory_); }
  ~PlacesTest() override { fs::remove_all(directory_); }

  const fs::path directory_ = fs::path(::testing::TempDir()) / str("places_test_", ::getpid());
};

TEST_F(PlacesTest, FilesNeedADirectoryAndANameOfTheirOwn) {
  require_place_for_file(directory_ / "new");
  require_place_for_file("new");
  write_file(directory_ / "old", "x");
  require_place_for_file(directory_ / "old");
  EXPECT_THROW(require_place_for_file(directory_), UserError);
  EXPECT_THROW(require_place_for_file("/dev/null"), UserError);
  EXPECT_THROW(require_place_for_file(directory_ / "missing" / "new"), UserError);
}

TEST_F(PlacesTest, WhatIsReadIsNotWritten) {
  write_file(directory_ / "a", "x");
  fs::create_symlink(directory_ / "a", directory_ / "link");
  require_other_file(directory_ / "a", directory_ / "b");
  EXPECT_THROW(require_other_file(directory_ / "a", directory_ / "link"), UserError);
}

TEST_F(PlacesTest, AFileOfAnotherKindIsNotReplaced) {
  const fs::path file = directory_ / "file";
  const auto read = [](std::string_view bytes) {
    require(bytes.starts_with("{"), "no file of the kind");
  };
  require_same_kind(file, "a .x file", read);  // none
  for (const char* of_the_kind : {"", "{", "{}"}) {
    write_file(file, of_the_kind);
    require_same_kind(file, "a .x file", read);
  }
  write_file(file, "A text of somebody's.");
  EXPECT_THROW(require_same_kind(file, "a .x file", read), UserError);
}

TEST_F(PlacesTest, AReadOnlyFileIsNotReplaced) {
  const fs::path file = directory_ / "file";
  write_file(file, "kept");
  require_place_for_file(file);
  fs::permissions(file, fs::perms::owner_read);
  EXPECT_THROW(require_place_for_file(file), UserError);
}

TEST_F(PlacesTest, ADirectoryGoesOnlyIfAllOfItIsOurs) {
  const fs::path place = directory_ / "place", elsewhere = directory_ / "elsewhere";
  const auto goes = [](const fs::path& path) {
    remove_if_ours(path, [](std::string_view name) { return name == "ours"; });
    return !fs::exists(fs::symlink_status(path));
  };
  const auto make = [&] {
    fs::remove_all(place);
    fs::create_directories(place);
    for (const char* name : {"ours", ".ours.tmp-1-2"}) write_file(place / name, "x");
  };
  make();
  EXPECT_TRUE(goes(place));
  EXPECT_TRUE(goes(place)) << "what is missing is gone";
  for (const char* name : {"theirs", ".ours.tmp-1", ".theirs.tmp-1-2"}) {
    make();
    write_file(place / name, "x");
    EXPECT_FALSE(goes(place)) << name;
    EXPECT_TRUE(fs::exists(place / "ours"));
  }
  make();
  fs::remove(place / "ours");
  fs::create_directories(place / "ours");  // a directory, no file
  EXPECT_FALSE(goes(place));
  make();
  fs::create_directory_symlink(place, elsewhere);
  EXPECT_FALSE(goes(elsewhere));
  write_file(directory_ / "file", "x");
  EXPECT_FALSE(goes(directory_ / "file"));
}

TEST_F(PlacesTest, ALockIsWaitedForUntilTheWaitIsGivenUp) {
  const fs::path path = directory_ / "lock";
  auto first = std::make_unique<FileLock>(path, "busy");
  EXPECT_THROW(wait_for_lock(path, [] { throw MachineError("enough"); }), MachineError);
  int waits = 0;
  const auto second = wait_for_lock(path, [&] {
    if (++waits == 2) first.reset();
  });
  EXPECT_EQ(waits, 2);
  EXPECT_THROW(FileLock(path, "busy"), UserError);
}

}  // namespace
}  // namespace flashstep
