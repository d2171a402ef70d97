#include "flashstep/detail/token_file.h"

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class TokenFileTest : public ::testing::Test {
 protected:
  TokenFileTest() { fs::create_directories(directory_); }
  ~TokenFileTest() override { fs::remove_all(directory_); }

  fs::path file(const std::string& name) const { return directory_ / name; }
  fs::path write(const std::string& name, const std::string& bytes) const {
    write_file(file(name), bytes);
    return file(name);
  }

  const fs::path directory_ = fs::temp_directory_path() / str("flashstep-token-file-", ::getpid());
};

// A .npy file of version 1.0 with this dictionary and `data_bytes` zeros.
std::string npy(const std::string& dictionary, size_t data_bytes) {
  std::string file = "\x93NUMPY";
  file += {1, 0};
  std::string padded = dictionary;
  while ((10 + padded.size() + 1) % 64 != 0) padded += ' ';
  padded += '\n';
  file += static_cast<char>(padded.size() & 0xff);
  file += static_cast<char>(padded.size() >> 8);
  return file + padded + std::string(data_bytes, '\0');
}

// What is said about the bytes; "" when they are accepted.
std::string refusal(const std::string& bytes) {
  return testing::refusal([&] { TokenView view(bytes, "x.npy"); });
}

void expect_refused(const std::string& bytes, const std::string& part) {
  EXPECT_NE(refusal(bytes).find(part), std::string::npos) << "said: " << refusal(bytes);
  EXPECT_EQ(refusal(bytes).find("[x.npy] expected "), 0u) << "said: " << refusal(bytes);
}

void write_and_read(const fs::path& path, int64_t vocab_size, const std::vector<uint32_t>& ids,
                    size_t piece) {
  TokenFileWriter writer(path, vocab_size);
  for (size_t at = 0; at < ids.size(); at += piece) {
    writer.append(std::span(ids).subspan(at, std::min(piece, ids.size() - at)));
  }
  EXPECT_FALSE(fs::exists(path)) << "the file must not appear before commit()";
  writer.commit();
  const TokenFile file(path, vocab_size);
  ASSERT_EQ(file.size(), ids.size());
  EXPECT_EQ(file.bytes_per_token(), vocab_size <= 65536 ? 2 : 4);
  std::vector<uint32_t> back(ids.size());
  file.read(0, std::span<uint32_t>(back));
  EXPECT_EQ(back, ids);
  for (size_t i = 0; i < ids.size(); i += 97) EXPECT_EQ(file[i], ids[i]);
}

TEST_F(TokenFileTest, RoundTripsBothTypesInPiecesOfAnySize) {
  std::vector<uint32_t> ids(10007);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i * 2654435761u % 65536);
  int count = 0;
  for (const size_t piece : {size_t{1}, size_t{4096}, ids.size()}) {
    write_and_read(file(str(count++, ".npy")), 65536, ids, piece);
  }
  ids[3] = 65536;  // the first id that needs 32 bits
  write_and_read(file("wide.npy"), 65537, ids, 1000);
  write_and_read(file("widest.npy"), int64_t{1} << 32, {0xffffffffu, 0}, 1);
  write_and_read(file("empty.npy"), 10, {}, 1);
}

TEST_F(TokenFileTest, AbandonedWriterLeavesNothing) {
  { TokenFileWriter(file("a.npy"), 10).append(std::vector<uint32_t>{1, 2}); }
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(TokenFileTest, WriterRefusesIdsBeyondTheVocabulary) {
  TokenFileWriter writer(file("a.npy"), 1000);
  writer.append(std::vector<uint32_t>{0, 999});
  EXPECT_THROW(writer.append(std::vector<uint32_t>{5, 1000}), UserError);
  EXPECT_THROW(TokenFileWriter(file("b.npy"), 0), UserError);
  EXPECT_THROW(TokenFileWriter(file("b.npy"), (int64_t{1} << 32) + 1), UserError);
}

TEST_F(TokenFileTest, NamesTheFirstIdBeyondTheVocabulary) {
  TokenFileWriter writer(file("a.npy"), 1000);
  std::vector<uint32_t> ids(5'000'000, 7);  // longer than one chunk of the check
  ids[4'900'000] = 500;
  ids[4'900'001] = 999;
  writer.append(ids);
  writer.commit();
  EXPECT_NO_THROW(TokenFile(file("a.npy"), 1000));
  EXPECT_NO_THROW(TokenFile(file("a.npy")));
  try {
    TokenFile checked(file("a.npy"), 500);
    FAIL() << "ids 500 and 999 were accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), str("[", file("a.npy").string(),
                                "] expected token ids below the vocabulary's 500, got 500 at "
                                "position 4900000"));
  }
}

TEST_F(TokenFileTest, ReadsWindowsWidened) {
  TokenFileWriter writer(file("a.npy"), 100);
  std::vector<uint32_t> ids(50);
  std::iota(ids.begin(), ids.end(), 0u);
  writer.append(ids);
  writer.commit();
  const TokenFile tokens(file("a.npy"));
  std::vector<int64_t> window(7);
  tokens.read(43, std::span<int64_t>(window));
  EXPECT_EQ(window, (std::vector<int64_t>{43, 44, 45, 46, 47, 48, 49}));
  EXPECT_EQ(tokens.max_id(10, 20), 19u);
  EXPECT_EQ(tokens.max_id(10, 10), 0u);
}

TEST_F(TokenFileTest, FingerprintsTellFilesApart) {
  const auto fingerprint = [&](const std::vector<uint32_t>& ids, int64_t vocab_size = 1000) {
    TokenFileWriter writer(file("a.npy"), vocab_size);
    writer.append(ids);
    writer.commit();
    return TokenFile(file("a.npy")).fingerprint();
  };
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{1'000'000}}) {
    std::vector<uint32_t> ids(size, 7);
    const std::string original = fingerprint(ids);
    EXPECT_EQ(fingerprint(ids), original);
    EXPECT_NE(fingerprint(ids, 100'000), original) << "32 bits instead of 16, " << size;
    ids.push_back(7);
    EXPECT_NE(fingerprint(ids), original) << "one more, " << size;
    ids.pop_back();
    for (const size_t at : {size_t{0}, size - 1}) {
      if (at >= size) continue;
      ids[at] = 8;
      EXPECT_NE(fingerprint(ids), original) << at << " of " << size;
      ids[at] = 7;
    }
  }
}

TEST_F(TokenFileTest, AcceptsEverySpellingOfTheHeader) {
  for (const char* dictionary : {
           "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
           "{'shape': (3,), 'fortran_order': True, 'descr': '<u2'}",
           "{\"descr\":\"<u2\",\"fortran_order\":False,\"shape\":(3,)}",
           "  { 'descr' : '<u2' ,\t'fortran_order' : False , 'shape' : ( 3 , ) , }  ",
       }) {
    EXPECT_EQ(refusal(npy(dictionary, 6)), "") << dictionary;
  }
  EXPECT_EQ(refusal(npy("{'descr': '<u4', 'fortran_order': False, 'shape': (3,)}", 12)), "");
  std::string version2 = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3,)}   ", 6);
  version2[6] = 2;
  version2.insert(10, 2, '\0');  // the length has four bytes
  EXPECT_EQ(refusal(version2), "");
}

TEST_F(TokenFileTest, RefusesOtherTypesByName) {
  const auto typed = [](const std::string& descr) {
    return npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': (2,), }", 16);
  };
  expect_refused(typed("'<i8'"), "type uint16 or uint32, got int64");
  expect_refused(typed("'<f4'"), "got float32");
  expect_refused(typed("'|u1'"), "got uint8");
  expect_refused(typed("'>u2'"), "got big-endian '>u2'");
  expect_refused(typed("'|O'"), "got Python objects");
  expect_refused(typed("[('a', '<u2')]"), "got a structured array");
  expect_refused(typed("'<u2\xff"), "");
}

TEST_F(TokenFileTest, RefusesTamperedHeaders) {
  const std::string order = "'fortran_order': False, ", type = "{'descr': '<u2', ";
  expect_refused("", "got an empty file");
  expect_refused("Once upon a time", "does not begin with");
  expect_refused("\x93NUMPY", "cut after 6 bytes");
  expect_refused(std::string("\x93NUMPY\x01\x00\x76", 9), "cut after 9 bytes");
  expect_refused(std::string("\x93NUMPY\x03\x00\x76\x00", 10), "version 1.0 or 2.0, got 3.0");
  expect_refused(std::string("\x93NUMPY\x01\x00\xff\xff{'descr", 17), "header of 65535 bytes");
  expect_refused(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{", 13), "header of 4294967295");
  expect_refused(npy(type + order + "'shape': (3, 2), }", 12), "an array of 2 dimensions");
  expect_refused(npy(type + order + "'shape': (), }", 2), "an array of 0 dimensions");
  expect_refused(npy(type + order + "'shape': (3), }", 6), "a comma after the only length");
  expect_refused(npy(type + order + "'shape': (-3,), }", 6), "a length");
  expect_refused(npy(type + order + "'shape': (9999999999999999999999,), }", 6), "below 10^18");
  expect_refused(npy(type + order + "'shape': (999999999999999999,), }", 6),
                 "expected 999999999999999999 token ids of 2 bytes");
  expect_refused(npy(type + order + "'shape': (3,), 'shape': (3,)}", 6), "once each");
  expect_refused(npy(type + order + "}", 6), "the keys descr");
  expect_refused(npy(type + "'fortran_order': 0, 'shape': (3,)}", 6), "True or False");
  expect_refused(npy(type + order + "'shape': (3,), 'os': (3,)}", 6), "once each");
  expect_refused(npy(type + order + "'shape': (3,)} + evil()", 6), "nothing after it");
  expect_refused(npy("{'descr", 6), "a closing quote");
  expect_refused(npy("", 6), "'{'");
}

TEST_F(TokenFileTest, RefusesAFileOfAnotherSize) {
  const std::string good = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", 6);
  EXPECT_EQ(refusal(good), "");
  expect_refused(good + "x", "3 token ids of 2 bytes (6 bytes), got 7 bytes");
  for (size_t kept = 0; kept < good.size(); ++kept) {
    EXPECT_NE(refusal(good.substr(0, kept)), "") << "accepted its first " << kept << " bytes";
  }
}

TEST_F(TokenFileTest, RefusesMisalignedIds) {
  std::string file = std::string("\x93NUMPY\x01\x00\x35\x00", 10) +
                     "{'descr':'<u2','fortran_order':False,'shape':(1,)}  \n" + "ab";
  ASSERT_EQ(file.size(), 10u + 0x35u + 2u);
  expect_refused(file, "a multiple of 2 bytes, got byte 63");
}

TEST_F(TokenFileTest, RefusesWhatCannotBeRead) {
  EXPECT_THROW(TokenFile(file("missing.npy")), UserError);
  EXPECT_THROW(TokenFile{directory_}, UserError);
  EXPECT_THROW(TokenFile(write("empty.npy", "")), UserError);
}

// Run by token_file_test.py, which opens the result with numpy.
TEST(TokenFileForNumpy, Writes) {
  const char* directory = std::getenv("TOKEN_FILE_DIRECTORY");
  if (directory == nullptr) GTEST_SKIP() << "TOKEN_FILE_DIRECTORY is not set";
  for (const int64_t vocab_size : {65536, 100000}) {
    TokenFileWriter writer(fs::path(directory) / str("ours_", vocab_size, ".npy"), vocab_size);
    for (uint32_t i = 0; i < 1000; ++i) {
      const uint32_t id = i * 7919u % static_cast<uint32_t>(vocab_size);
      writer.append(std::span(&id, 1));
    }
    writer.commit();
  }
}

}  // namespace
}  // namespace flashstep
