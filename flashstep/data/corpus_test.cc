#include "flashstep/data/corpus.h"

#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/data/inspect.h"
#include "flashstep/data/manifest.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class CorpusTest : public ::testing::Test {
 protected:
  CorpusTest() { fs::create_directories(directory_); }
  ~CorpusTest() override { fs::remove_all(directory_); }

  fs::path write(const std::string& name, const std::string& bytes) const {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    write_file(path, bytes);
    return path;
  }

  const fs::path directory_ = fs::temp_directory_path() / str("flashstep-corpus-", ::getpid());
};

TEST_F(CorpusTest, ListsTheTextsOfADirectorySorted) {
  write("texts/b.txt", "b");
  write("texts/a/z.txt", "z");
  write("texts/a.txt", "a");
  write("texts/.hidden.txt", "h");
  write("texts/.git/config.txt", "h");
  write("texts/empty.txt", "");
  write("texts/readme.md", "r");
  const fs::path texts = directory_ / "texts";
  EXPECT_EQ(text_files(texts),
            (std::vector<fs::path>{texts / "a" / "z.txt", texts / "a.txt", texts / "b.txt"}));
  EXPECT_EQ(text_files(texts / "readme.md"), (std::vector<fs::path>{texts / "readme.md"}));
}

TEST_F(CorpusTest, TakesWhateverIsTextWhereNothingIsCalledTxt) {
  write("code/main.py", "print()");
  write("code/binary", std::string("a\0b", 3));
  EXPECT_EQ(text_files(directory_ / "code"),
            (std::vector<fs::path>{directory_ / "code" / "main.py"}));
}

TEST_F(CorpusTest, RefusesWhatIsNoText) {
  const auto expect = [&](const std::string& bytes, const std::string& got) {
    const fs::path alone = write("given", bytes), in_directory = write("some/given.txt", bytes);
    for (const auto& [source, file] :
         {std::pair(alone, alone), std::pair(in_directory.parent_path(), in_directory)}) {
      EXPECT_EQ(testing::refusal([&] { text_files(source); }),
                str("[corpus] expected text in ", file.string(), ", got ", got));
    }
  };
  const auto wide = [](const std::string& text, bool big_endian) {
    std::string bytes;
    for (const char c : text) bytes += big_endian ? std::string{'\0', c} : std::string{c, '\0'};
    return bytes;
  };
  const auto iconv = [](const std::string& encoding) {
    return "what looks like " + encoding + ": make UTF-8 of it with iconv -f " + encoding +
           " -t UTF-8";
  };
  expect("\xFF\xFE" + wide("hello\n", false), iconv("UTF-16"));
  expect("\xFE\xFF" + wide("hello\n", true), iconv("UTF-16"));
  expect(std::string("\xFF\xFE\0\0h\0\0\0", 8), iconv("UTF-32"));
  expect(std::string("\0\0\xFE\xFF\0\0\0h", 8), iconv("UTF-32"));
  expect(wide("hello", false) + "\x19\x20\n", iconv("UTF-16LE"));
  expect(wide("hello", true), iconv("UTF-16BE"));
  expect(std::string("\x1F\x8B\x08\0\0\0\0\0", 8), "a gzip file: unpack it with gunzip");
  expect(std::string("PAR1\x15\0\x15\0\0\0", 10), "a file with a zero byte in its first 8 KiB");
  const fs::path late = write("late", std::string(8 << 10, 'a') + '\0');
  EXPECT_EQ(text_files(late), std::vector<fs::path>{late});

  CorpusOptions options;
  options.source = late.string();
  options.validation = write("validation", wide("hello", false)).string();
  options.directory = directory_ / "unused";
  EXPECT_THROW(prepare_corpus(options), UserError);
}

TEST_F(CorpusTest, SaysWhatOfADirectoryIsLeftOut) {
  const fs::path texts = directory_ / "some";
  std::string said;
  const auto say = [&](const std::string& sentence) { said = sentence; };
  write("some/c.txt", "c");
  text_files(texts, say);
  EXPECT_EQ(said, "[data] 1 file of " + texts.string() + " read");
  write("some/b.TXT", "b");
  write("some/d.text", "d");
  write("some/notes.md", "n");
  fs::create_symlink("nowhere", texts / "left_out.md");
  EXPECT_EQ(text_files(texts, say), (std::vector<fs::path>{texts / "b.TXT", texts / "c.txt"}));
  EXPECT_EQ(said, "[data] 2 files of " + texts.string() +
                      " read, 3 left out: .txt files only, as there are some");
  write("elsewhere/e.txt", "e");
  fs::create_directory_symlink(directory_ / "elsewhere", texts / "linked");
  EXPECT_EQ(text_files(texts, say).size(), 2u);
  EXPECT_TRUE(said.ends_with("; linked directories, not gone into: 1")) << said;
  fs::create_symlink("nowhere", texts / "broken.txt");
  EXPECT_EQ(testing::refusal([&] { text_files(texts); }), "[corpus] expected text in " +
                                                              (texts / "broken.txt").string() +
                                                              ", got a link that leads nowhere");
}

TEST_F(CorpusTest, RefusesSourcesWithoutText) {
  EXPECT_THROW(text_files(directory_ / "missing"), UserError);
  EXPECT_THROW(text_files(write("empty", "")), UserError);
  fs::create_directories(directory_ / "nothing");
  EXPECT_THROW(text_files(directory_ / "nothing"), UserError);
  if (::geteuid() != 0) {
    const fs::path secret = write("secret", "x");
    fs::permissions(secret, fs::perms::none);
    EXPECT_THROW(text_files(secret), UserError);
  }
}

TEST_F(CorpusTest, PreparesAndSkipsACut) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += str("story ", i, "\n<|endoftext|>\n");
  CorpusOptions options;
  options.source = write("all.txt", text).string();
  options.directory = directory_ / "prepared";
  options.validation_fraction = 0.1;
  options.only_check = true;
  EXPECT_THROW(prepare_corpus(options), UserError);
  options.only_check = false;
  const Corpus corpus = prepare_corpus(options);
  ASSERT_EQ(corpus.train.size(), 1u);
  ASSERT_EQ(corpus.validation.size(), 1u);
  const std::string train = read_file(corpus.train[0]), held_out = read_file(corpus.validation[0]);
  EXPECT_EQ(train + held_out, text);
  EXPECT_TRUE(train.ends_with("<|endoftext|>\n"));
  EXPECT_NEAR(static_cast<double>(held_out.size()), 0.1 * static_cast<double>(text.size()), 30);

  const auto written = fs::last_write_time(corpus.train[0]);
  options.only_check = true;
  EXPECT_EQ(prepare_corpus(options).train, corpus.train);
  write_file(corpus.train[0], "damaged");
  EXPECT_THROW(prepare_corpus(options), UserError);
  options.only_check = false;
  prepare_corpus(options);
  EXPECT_EQ(read_file(corpus.train[0]), train);
  EXPECT_NE(fs::last_write_time(corpus.train[0]), written);
}

TEST_F(CorpusTest, NeverOverwritesWhatItReads) {
  const std::string text = "first<|endoftext|>second<|endoftext|>third<|endoftext|>";
  CorpusOptions options;
  options.directory = directory_ / "data";
  for (const char* name : {"train.txt", "validation.txt", "stories.txt"}) {
    options.source = write(str("data/", name), text).string();
    EXPECT_THROW(prepare_corpus(options), UserError) << name;
    EXPECT_EQ(read_file(options.source), text);
    fs::create_symlink(options.source, directory_ / "link.txt");
    options.source = directory_ / "link.txt";
    EXPECT_THROW(prepare_corpus(options), UserError) << name;
    fs::remove(directory_ / "link.txt");
    fs::remove(options.directory / name);
  }
  options.source = write("all.txt", text).string();
  options.validation = write("data/train.txt", text).string();
  EXPECT_THROW(prepare_corpus(options), UserError);
  EXPECT_EQ(read_file(options.validation), text);
}

TEST_F(CorpusTest, TextsAndWhatIsMadeOfThemLieApart) {
  const std::string text = "first<|endoftext|>second<|endoftext|>";
  write("texts/a.txt", text);
  write("texts/more/b.txt", text);
  CorpusOptions options;
  const auto prepare = [&](const fs::path& source, const fs::path& directory) {
    options.source = source.string();
    options.directory = directory;
    return prepare_corpus(options);
  };
  const fs::path texts = directory_ / "texts";
  EXPECT_THROW(prepare(texts, texts), UserError);
  EXPECT_THROW(prepare(texts, texts / "." / "more"), UserError);
  EXPECT_THROW(prepare(texts, texts / "not_there_yet"), UserError);
  EXPECT_THROW(prepare(texts / "more", texts), UserError);
  EXPECT_EQ(prepare(texts, directory_ / "texts_made").validation.size(), 1u);
}

TEST_F(CorpusTest, UsesAValidationFileOfItsOwn) {
  CorpusOptions options;
  options.source = write("train.txt", "no separator at all").string();
  options.validation = write("valid.txt", "held out").string();
  options.directory = directory_ / "unused";
  const Corpus corpus = prepare_corpus(options);
  EXPECT_EQ(corpus.train[0], options.source);
  EXPECT_EQ(corpus.validation[0], options.validation);
  EXPECT_FALSE(fs::exists(options.directory));
  options.validation = "missing";
  EXPECT_THROW(prepare_corpus(options), UserError);
}

// As `mv` puts it there, while it is cut.
TEST_F(CorpusTest, ATextThatIsReplacedWhileItIsReadIsRefused) {
  std::string first, second;
  for (int i = 0; i < 50'000; ++i) first += "alpha beta\n", second += "gamma iota\n";
  CorpusOptions options;
  options.source = write("text.txt", first).string();
  options.directory = directory_ / "data";
  options.progress = [&](uint64_t, uint64_t) {
    if (read_file(options.source) != second) fs::rename(write("new.txt", second), options.source);
  };
  testing::expect_sentence([&] { prepare_corpus(options); },
                           {"text.txt to stay as it is while it is read"});
  options.only_check = true;
  testing::expect_sentence([&] { prepare_corpus(options); }, {"was not finished"});
  options.only_check = false;
  const Corpus corpus = prepare_corpus(options);
  EXPECT_EQ(read_file(corpus.train[0]) + read_file(corpus.validation[0]), second);
}

TEST_F(CorpusTest, WritesTheStoriesOnce) {
  CorpusOptions options;
  options.source = "stories";
  options.directory = directory_ / "stories";
  options.stories_bytes = 100'000;
  const Corpus corpus = prepare_corpus(options);
  EXPECT_GE(fs::file_size(corpus.train[0]) + fs::file_size(corpus.validation[0]), 100'000u);
  options.only_check = true;
  EXPECT_EQ(prepare_corpus(options).train, corpus.train);
  options.stories_seed = 2;
  EXPECT_THROW(prepare_corpus(options), UserError);
}

TEST_F(CorpusTest, StoriesOfAnotherGeneratorAreToldAnew) {
  CorpusOptions options;
  options.source = "stories";
  options.directory = directory_ / "stories";
  options.stories_bytes = 100'000;
  const fs::path path = options.directory / "stories.txt", manifest = manifest_path(path);
  prepare_corpus(options);
  const std::string told = read_file(path);
  write_file(path, "Once upon an older time.");
  write_manifest(manifest, {"stories", {{"bytes", "100000"}, {"seed", "1"}}, {}, {path}});
  options.only_check = true;
  EXPECT_THROW(prepare_corpus(options), UserError);
  options.only_check = false;
  prepare_corpus(options);
  EXPECT_EQ(read_file(path), told);
}

TEST_F(CorpusTest, ChecksFetchedFiles) {
  CorpusOptions options;
  options.source = "tinystories";
  options.base_url = "http://127.0.0.1:9/nowhere";
  options.directory = directory_;
  options.only_check = true;
  EXPECT_THROW(prepare_corpus(options), UserError);
  write("TinyStoriesV2-GPT4-train.txt", "placed by hand");
  write("TinyStoriesV2-GPT4-valid.txt", "too");
  const fs::path valid = directory_ / "TinyStoriesV2-GPT4-valid.txt";
  EXPECT_EQ(prepare_corpus(options).validation[0], valid);
  EXPECT_FALSE(fs::exists(manifest_path(valid))) << "a check writes nothing";
  options.only_check = false;
  prepare_corpus(options);
  EXPECT_TRUE(fs::exists(manifest_path(valid)));
  options.only_check = true;
  write("TinyStoriesV2-GPT4-valid.txt", "changed");
  EXPECT_THROW(prepare_corpus(options), UserError);
}

TEST_F(CorpusTest, CountsTextsAndTokens) {
  const auto text = [&](const std::string& content) {
    return text_statistics(write("text", content), "|");
  };
  EXPECT_EQ(text("").documents, 0u);
  EXPECT_EQ(text("a|\nb|\n").documents, 2u);
  EXPECT_EQ(text("a|\nb").documents, 2u);
  EXPECT_EQ(text("a|\nb").lines, 2u);
  EXPECT_EQ(text("a|\nb\n").lines, 2u);

  TokenFileWriter writer(directory_ / "tokens.npy", 100'000);
  writer.append(std::vector<uint32_t>{5, 99'999, 5, 7, 7, 70'000, 5});
  writer.commit();
  const TokenStatistics statistics = token_statistics(TokenFile(directory_ / "tokens.npy"), 3);
  EXPECT_EQ(statistics.tokens, 7u);
  EXPECT_EQ(statistics.distinct, 4u);
  EXPECT_EQ(statistics.smallest, 5u);
  EXPECT_EQ(statistics.largest, 99'999u);
  EXPECT_EQ(statistics.commonest,
            (std::vector<std::pair<uint32_t, uint64_t>>{{5, 3}, {7, 2}, {70'000, 1}}));
}

}  // namespace
}  // namespace flashstep
