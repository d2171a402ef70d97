#include "flashstep/data/cut.h"

#include <cmath>
#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/data/corpus.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using Place = std::pair<size_t, uint64_t>;

class CutTest : public ::testing::Test {
 protected:
  CutTest() { fs::create_directories(directory_); }
  ~CutTest() override { fs::remove_all(directory_); }

  fs::path write(const std::string& name, const std::string& bytes) const {
    const fs::path path = directory_ / name;
    write_file(path, bytes);
    return path;
  }
  // The cut of these files with documents ended by "|".
  std::pair<size_t, uint64_t> cut(const std::vector<std::string>& contents, double fraction) const {
    std::vector<fs::path> files;
    for (const std::string& content : contents) {
      files.push_back(write(str("cut", files.size()), content));
    }
    const Cut found = find_cut(files, fraction, "|");
    return {found.file, found.offset};
  }

  const fs::path directory_ = fs::temp_directory_path() / str("flashstep-cut-", ::getpid());
};

TEST_F(CutTest, WhiteSpaceAndEndsAreNoDocument) {
  EXPECT_EQ(cut({"aaa|bbb|", "\n"}, 0.1), Place(0, 4));
  EXPECT_EQ(cut({"aaa|bbb|", " ", "\r\n"}, 0.01), Place(0, 4));
  EXPECT_EQ(cut({"aaa|bbb|  \n  |  \n"}, 0.2), Place(0, 4));
  EXPECT_EQ(cut({"aaa|", "bbb|", "\n"}, 0.1), Place(1, 0));
  EXPECT_THROW(cut({"aaa|  \n  |  \n"}, 0.2), UserError);
}

TEST_F(CutTest, CutsAtTheNextEndOfADocument) {
  //                     0123456789
  EXPECT_EQ(cut({"aa|bb|cc|d"}, 0.5), (Place{0, 6}));
  EXPECT_EQ(cut({"aa|bb|cc|d"}, 0.4), (Place{0, 6}));   // the target itself is an end
  EXPECT_EQ(cut({"aa|bb|cc|d"}, 0.31), (Place{0, 6}));  // rounded up to 0.4 of ten bytes
  EXPECT_EQ(cut({"aa|bb|cc|d"}, 0.3), (Place{0, 6}));   // behind the next end lies too little
  EXPECT_EQ(cut({"aa|bb|cc|dd"}, 0.3), (Place{0, 9}));
  EXPECT_EQ(cut({"aa|bb|cc|d"}, 0.99), (Place{0, 3}));
  EXPECT_EQ(cut({"aa|\n\nbb|\ncc|"}, 0.7), (Place{0, 5}));  // newlines belong to what they end
}

TEST_F(CutTest, CutsBeforeTheLastDocumentWhenNothingFollows) {
  EXPECT_EQ(cut({"aaaaaa|b|\n"}, 0.01), (Place{0, 7}));
  EXPECT_EQ(cut({"a|bbbbbbbb"}, 0.1), (Place{0, 2}));
}

// As Windows ends lines, and editors files.
TEST_F(CutTest, WhiteSpaceIsNoDocument) {
  EXPECT_EQ(cut({"aa|\r\nbb|\r\ncc|"}, 0.7), (Place{0, 5}));
  EXPECT_EQ(cut({"aaaaaa|\r\nb|\r\n"}, 0.01), (Place{0, 9}));
  EXPECT_EQ(cut({"aaaaaa|b| \n"}, 0.01), (Place{0, 7}));
  EXPECT_EQ(cut({"aaa|\r\n", "bbbb"}, 0.9), (Place{1, 0}));
  EXPECT_THROW(cut({"aaaa|\r\n"}, 0.5), UserError);
  EXPECT_THROW(cut({"aaaa| \n"}, 0.5), UserError);
}

TEST_F(CutTest, FilesEndDocuments) {
  EXPECT_EQ(cut({"aaaa", "bbbb", "cccc"}, 0.5), (Place{2, 0}));
  EXPECT_EQ(cut({"aaaa", "bbbb"}, 0.01), (Place{1, 0}));
  EXPECT_EQ(cut({"aaaa", "bb|b"}, 0.01), (Place{1, 3}));
  EXPECT_EQ(cut({"aaaa", "bbbb"}, 0.5), (Place{1, 0}));
  EXPECT_EQ(cut({"aa|a", "bbbb"}, 0.9), (Place{0, 3}));
  EXPECT_EQ(cut({"aaa|", "bbbb"}, 0.9), (Place{1, 0}));
}

TEST_F(CutTest, CutsOneDocumentBeforeALine) {
  //              0 123 456 789
  EXPECT_EQ(cut({"a\nbb\ncc\ndd"}, 0.5), (Place{0, 5}));
  EXPECT_EQ(cut({"a\nbb\ncc\ndd"}, 0.1), (Place{0, 8}));
  EXPECT_EQ(cut({"a\nbb\ncc\ndd"}, 0.99), (Place{0, 2}));  // the first part gets a line
  EXPECT_EQ(cut({"a\nbb\ncc\n|\n"}, 0.01), (Place{0, 5}));
  EXPECT_EQ(cut({"\n\naa\nbb", "\n"}, 0.8), (Place{0, 5}));
  const fs::path play = write("play.txt", "to be\r\nor not\r\n");
  EXPECT_TRUE(find_cut({play}, 0.5, "|").within_document);
  EXPECT_EQ(find_cut({play}, 0.5, "|").offset, 7);
  EXPECT_FALSE(find_cut({write("two", "a|b\n")}, 0.5, "|").within_document);
}

// A book beside a note, and the other way round.
TEST_F(CutTest, CutsBeforeALineWhereNoDocumentEndsNear) {
  std::string book;
  for (int i = 0; i < 100; ++i) book += "nine text\n";
  const fs::path large = write("large", book), small = write("small", "a small note\n");
  const auto expect = [](const Cut& cut, size_t file, uint64_t offset) {
    EXPECT_TRUE(cut.within_document);
    EXPECT_EQ(Place(cut.file, cut.offset), Place(file, offset));
    EXPECT_TRUE(is_near(cut.share, 0.1)) << cut.share;
  };
  expect(find_cut({large, small}, 0.1, "|"), 0, 910);  // 102 of 1013 bytes are asked for
  expect(find_cut({small, large}, 0.1, "|"), 1, 890);
  expect(find_cut({small, large, small}, 0.1, "|"), 1, 910);
  expect(find_cut({large, large}, 0.1, "|"), 1, 800);
  expect(find_cut({write("last", "a|\nb|\n" + book)}, 0.1, "|"), 0, 896);
  expect(find_cut({write("first", book + "|\na|\nb|\n")}, 0.1, "|"), 0, 900);
  const Cut note = find_cut({large, small}, 0.01, "|");
  EXPECT_EQ(Place(note.file, note.offset), Place(1, 0));  // an end of a document is near
  EXPECT_FALSE(note.within_document);
}

TEST_F(CutTest, CutsAtTheNearestPlaceWhereNoneIsNear) {
  const std::string line(100, 'x');
  EXPECT_EQ(cut({line + "\n" + line + line}, 0.1), Place(0, 101));
  EXPECT_EQ(cut({line + "|" + line + line + "\n" + line}, 0.01), Place(0, 302));
  EXPECT_EQ(cut({line, line + line, "note"}, 0.5), Place(1, 0));
  EXPECT_EQ(cut({line, line + line, "note"}, 0.2), Place(2, 0));
}

TEST_F(CutTest, RefusesToCutOneLine) {
  EXPECT_THROW(cut({"aaaa"}, 0.5), UserError);
  EXPECT_THROW(cut({"aaaa|"}, 0.5), UserError);
  EXPECT_THROW(cut({"aaaa|\n"}, 0.5), UserError);
  for (const double fraction : {0.0, 1.0, -0.1, 2.0, std::nan("")}) {
    EXPECT_THROW(cut({"a|b|c|"}, fraction), UserError);
  }
}

TEST_F(CutTest, KnowsWhetherAFileEndsADocument) {
  const auto ends = [&](const std::string& text, std::string_view end) {
    return ends_document(write("text", text), end);
  };
  EXPECT_TRUE(ends("a<x>", "<x>"));
  EXPECT_TRUE(ends("a<x> \r\n", "<x>"));
  EXPECT_FALSE(ends("a<x>b", "<x>"));
  EXPECT_FALSE(ends("x>", "<x>"));
  EXPECT_FALSE(ends("a", "<x>"));
  EXPECT_TRUE(ends(" \n", "<x>"));  // no text, no document
  EXPECT_TRUE(ends("a\n\n", "\n\n"));
  EXPECT_FALSE(ends("a\n", "\n\n"));
  EXPECT_FALSE(ends("a\n\nb\n", "\n\n"));
  EXPECT_TRUE(ends("a.\n", ".\n"));
}

TEST_F(CutTest, SaysWhatIsCutAndHowMuch) {
  std::vector<std::string> said;
  CorpusOptions options;
  options.source = (directory_ / "texts").string();
  options.directory = directory_ / "made";
  options.validation_fraction = 0.2;
  options.say = [&](const std::string& sentence) { said.push_back(sentence); };
  fs::create_directories(options.source);
  const fs::path note = write("texts/a.txt", "note\n"),
                 book = write("texts/b.txt", "one\ntwo\nthree\nfour\nfive\n");
  EXPECT_EQ(prepare_corpus(options).train,
            (std::vector<fs::path>{note, directory_ / "made" / "train.txt"}));
  const std::string is_cut = book.string() + " is cut before a line, what lies behind byte ";
  EXPECT_EQ(said.back(), str("[data] no \"<|endoftext|>\" and no end of a file lies near the last ",
                             "20.0 % of the text: ", is_cut, "14 is held out"));
  options.source = book.string();
  options.validation_fraction = 0.001;
  said.clear();
  prepare_corpus(options);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0],
            "[data] NOTE: 20.8 % of the text is held out, 0.100 % was asked for: no document and "
            "no line ends nearer");
  EXPECT_TRUE(contains(said[1], is_cut + "19 is held out")) << said[1];
}

TEST_F(CutTest, NamesTheEndOfADocumentInOneLine) {
  const auto refusal = [&](const std::string& text, std::string_view document_end) {
    return testing::refusal([&] { find_cut({write("one", text)}, 0.5, document_end); });
  };
  EXPECT_TRUE(contains(refusal("a line", "\n\n"), "each ended by \"\\n\\n\", or two lines"));
  EXPECT_TRUE(refusal("a line", "\n\n").ends_with("what ends a document there"));
  const std::string typed = refusal("a line", "\\n\\n");  // as a shell leaves '\n\n'
  EXPECT_TRUE(contains(typed, "each ended by \"\\\\n\\\\n\", or two lines")) << typed;
  EXPECT_TRUE(
      typed.ends_with("; a shell leaves \\n as it is, for line breaks write "
                      "text.document_end=$'\\n\\n'"))
      << typed;
  EXPECT_TRUE(refusal("a line\\n", "\\n").ends_with("what ends a document there"));

  CorpusOptions options;
  std::string said;
  options.source = write("book", "one\ntwo\nthree\nfour\n").string();
  options.directory = directory_ / "made";
  options.say = [&](const std::string& sentence) { said = sentence; };
  options.document_end = "\\n\\n";
  prepare_corpus(options);
  EXPECT_TRUE(said.starts_with("[data] no \"\\\\n\\\\n\" and no end of a file lies near")) << said;
  EXPECT_TRUE(said.ends_with("write text.document_end=$'\\n\\n'")) << said;
  options.document_end = "\n\n";
  prepare_corpus(options);
  EXPECT_TRUE(said.starts_with("[data] no \"\\n\\n\" and no end of a file lies near")) << said;
  EXPECT_TRUE(said.ends_with(" is held out")) << said;
}

TEST_F(CutTest, SeparatorsAcrossTheTargetAreFound) {
  std::string text = "first";
  text += kDocumentEnd;
  const uint64_t end = text.size();
  text += "second";
  const fs::path file = write("text", text);
  for (uint64_t target = 1; target < text.size(); ++target) {
    const double fraction = static_cast<double>(text.size() - target) / text.size();
    EXPECT_EQ(find_cut({file}, fraction, kDocumentEnd).offset, end) << target;
  }
}

}  // namespace
}  // namespace flashstep
