#include "flashstep/detail/safetensors_format.h"

#include <cstring>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

std::string file_of(const std::string& json, uint64_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t length = json.size();
  std::memcpy(file.data(), &length, sizeof length);
  return file + json + std::string(data_bytes, 'x');
}

// The message with which `json` before `data_bytes` is refused; empty if it is accepted.
std::string refusal_of_header(const std::string& json, uint64_t data_bytes) {
  return testing::refusal([&] { parse_safetensors_header(file_of(json, data_bytes), "f"); });
}

std::string example_file() {
  std::vector<SafetensorsEntry> tensors = {
      {"a", "U8", {3}, 0, 0}, {"b", "F32", {2, 2}, 0, 0}, {"c", "I64", {}, 0, 0}};
  const std::string header = format_safetensors_header(tensors, {{"key", "value"}});
  return header + std::string(3 + 16 + 8, 'x');
}

TEST(SafetensorsFormat, ReadsWhatItWrote) {
  const SafetensorsHeader header = parse_safetensors_header(example_file(), "f");
  EXPECT_EQ(header.metadata.at("key"), "value");
  EXPECT_EQ(header.data_offset % 64, 0u);
  ASSERT_EQ(header.tensors.size(), 3u);
  const char* names[] = {"c", "b", "a"};  // larger elements first
  const uint64_t begins[] = {0, 8, 24};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(header.tensors[i].name, names[i]);
    EXPECT_EQ(header.tensors[i].begin, begins[i]);
  }
  EXPECT_EQ(header.tensors[1].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_TRUE(header.tensors[0].shape.empty());
}

TEST(SafetensorsFormat, AcceptsWhatTheFormatAllows) {
  EXPECT_EQ(refusal_of_header("{}", 0), "");
  EXPECT_EQ(refusal_of_header("{}   ", 0), "");
  EXPECT_EQ(refusal_of_header(R"({"__metadata__":{}})", 0), "");
  EXPECT_EQ(refusal_of_header(R"({"a":{"data_offsets":[0,0],"shape":[0,7],"dtype":"F32"}})", 0),
            "");
  EXPECT_EQ(refusal_of_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                              R"("":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                              2),
            "");
}

TEST(SafetensorsFormat, RefusesEveryTruncation) {
  const std::string whole = example_file();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_safetensors_header(whole.substr(0, size), "f"), UserError) << size;
  }
  EXPECT_THROW(parse_safetensors_header(whole + "x", "f"), UserError);
}

// Whatever a changed byte makes of the header, it is refused or still describes the file's bytes
// exactly.
TEST(SafetensorsFormat, SurvivesEveryChangedByte) {
  const std::string whole = example_file();
  const size_t header_bytes = parse_safetensors_header(whole, "f").data_offset;
  int accepted = 0;
  for (size_t i = 0; i < header_bytes; ++i) {
    for (int change = 1; change < 256; ++change) {
      std::string file = whole;
      file[i] = static_cast<char>(file[i] ^ change);
      try {
        const SafetensorsHeader header = parse_safetensors_header(file, "f");
        uint64_t end = 0;
        for (const SafetensorsEntry& tensor : header.tensors) {
          ASSERT_EQ(tensor.begin, end);
          end = tensor.end;
        }
        ASSERT_EQ(header.data_offset + end, file.size());
        ++accepted;
      } catch (const UserError&) {
      }
    }
  }
  EXPECT_GT(accepted, 0);  // names and metadata have no wrong letters
}

TEST(SafetensorsFormat, RefusesHugeLengthsBeforeReading) {
  for (const uint64_t length :
       {uint64_t{3}, kSafetensorsMaxHeaderBytes, kSafetensorsMaxHeaderBytes + 1, uint64_t{1} << 63,
        ~uint64_t{0}, ~uint64_t{0} - 7}) {
    std::string file(10, '{');
    std::memcpy(file.data(), &length, sizeof length);
    EXPECT_THROW(parse_safetensors_header(file, "f"), UserError) << length;
  }
}

struct Hostile {
  const char* json;
  uint64_t data_bytes;
  const char* expected;  // part of the message
};

TEST(SafetensorsFormat, SaysWhatIsWrong) {
  const Hostile cases[] = {
      {"", 0, "begins with '{'"},
      {" {}", 0, "begins with '{'"},
      {"[]", 0, "begins with '{'"},
      {"{", 0, "well-formed JSON"},
      {"{}x", 0, "well-formed JSON"},
      {"{\"\xff\":1}", 0, "well-formed JSON"},
      {R"({"a":1})", 0, "an object for tensor \"a\""},
      {R"({"a":null})", 0, "an object for tensor \"a\""},
      {R"({"a":[]})", 0, "an object for tensor \"a\""},
      {R"({"a":{}})", 0, "to have dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "to have dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "a known dtype"},
      {R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1, "a known dtype"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "once"},
      {R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", 4, "once"},
      {R"({"a":{"dtype":"F32","shape":[1],"extra":1,"data_offsets":[0,4]}})", 4, "\"extra\""},
      {R"({"a":{"dtype":"F32","shape":{"x":1},"data_offsets":[0,4]}})", 4, "an object"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "at least 0"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "at least 0"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "at least 0"},
      {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4, "at least 0"},
      {R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4,
       "at least 0"},
      {R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}})", 4,
       "at least 0"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4, "63 bits"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "63 bits"},
      {R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "63 bits"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "two numbers"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4, "two numbers"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, "two numbers"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8, "expected 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "within the file"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
       "4 bytes of data by the header, got 5"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "a hole"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "a hole"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],)"
       R"("data_offsets":[2,6]}})",
       6, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],)"
       R"("data_offsets":[0,4]}})",
       4, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],)"
       R"("data_offsets":[1,2]}})",
       2, "every name once"},
      {R"({"__metadata__":{"a":1}})", 0, "expected text"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", 0, "expected text"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", 0, "every key of __metadata__ once"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "every name once"},
  };
  for (const Hostile& one : cases) {
    EXPECT_NE(refusal_of_header(one.json, one.data_bytes).find(one.expected), std::string::npos)
        << one.json << "\n"
        << refusal_of_header(one.json, one.data_bytes);
  }
}

TEST(SafetensorsFormat, DeepJsonIsRefusedAtItsFirstLevels) {
  EXPECT_NE(refusal_of_header("{\"a\":" + std::string(1'000'000, '['), 0), "");
  std::string nested = "{";
  for (int i = 0; i < 100'000; ++i) nested += "\"a\":{";
  EXPECT_NE(refusal_of_header(nested, 0), "");
}

TEST(SafetensorsFormat, RefusesToWriteWhatCannotBeRead) {
  const auto refuses = [](std::vector<SafetensorsEntry> tensors,
                          const std::map<std::string, std::string>& metadata) {
    EXPECT_THROW(format_safetensors_header(tensors, metadata), UserError);
  };
  refuses({{"a", "U8", {1}, 0, 0}, {"a", "U8", {1}, 0, 0}}, {});
  refuses({{"__metadata__", "U8", {1}, 0, 0}}, {});
  refuses({{"a", "F4", {2}, 0, 0}}, {});
  refuses({{"\xff", "U8", {1}, 0, 0}}, {});
  refuses({}, {{"key", "\xff"}});
}

}  // namespace
}  // namespace flashstep
