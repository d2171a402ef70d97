#include "flashstep/train/checkpoint_state.h"

#include <gtest/gtest.h>

#include "flashstep/base/hash.h"
#include "flashstep/error.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

CheckpointState example_state() {
  return {100,
          {{"model.safetensors", "model", 1234, std::string(32, 'a')},
           {"optimizer.safetensors", "optimizer", 0, std::string(32, 'b')}},
          R"({"lr":0.1,"big":18446744073709551615,"text":"\u00e9\n","list":[1,2.0,null,true]})"};
}

// The file whose bytes after the hash are `body`: tampered with by someone who knows the hash.
std::string with_hash(const std::string& body) {
  return "{\n  \"xxh3_128\": \"" + hash_bytes(body) + "\",\n" + body;
}

std::string refusal_of_state(const std::string& bytes) {
  return testing::refusal([&] { parse_checkpoint_state(bytes, "s"); });
}

TEST(CheckpointState, ReadsWhatItWrote) {
  const CheckpointState read =
      parse_checkpoint_state(format_checkpoint_state(example_state()), "s");
  EXPECT_EQ(read.step, 100);
  ASSERT_EQ(read.files.size(), 2u);
  EXPECT_EQ(read.files[0].name, "model.safetensors");
  EXPECT_EQ(read.files[1].part, "optimizer");
  EXPECT_EQ(read.files[0].size_bytes, 1234u);
  EXPECT_EQ(read.files[1].hash, std::string(32, 'b'));
  EXPECT_EQ(read.state_json,
            R"({"lr":0.1,"big":18446744073709551615,"text":"é\n","list":[1,2.0,null,true]})");
}

TEST(CheckpointState, EveryDoubleComesBackUnchanged) {
  CheckpointState state = example_state();
  state.state_json = R"({"x":[0.1,1e-320,1.7976931348623157e+308,-0.0,3.0000000000000004]})";
  EXPECT_EQ(parse_checkpoint_state(format_checkpoint_state(state), "s").state_json,
            state.state_json);
}

TEST(CheckpointState, RefusesEveryTruncationAndEveryChangedByte) {
  const std::string whole = format_checkpoint_state(example_state());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NE(refusal_of_state(whole.substr(0, i)), "") << i;
    for (const int change : {1, 0x20, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ change);
      EXPECT_NE(refusal_of_state(bytes), "") << i;
    }
  }
  EXPECT_NE(refusal_of_state(whole + " "), "");
}

TEST(CheckpointState, SaysWhatIsWrong) {
  const std::string head = R"("format":"flashstep checkpoint","version":1,"step":1,)";
  const std::string ok = head + R"("files":[],"state":{}})";
  ASSERT_EQ(refusal_of_state(with_hash(ok)), "");
  const auto file = [&](const std::string& fields) {
    return head + "\"files\":[{" + fields + "}],\"state\":{}}";
  };
  const std::pair<std::string, const char*> cases[] = {
      {"}", "\"format\""},
      {"x", "a JSON object"},
      {R"("format":"other"})", "expected the format"},
      {R"("format":1})", "expected text"},
      {R"("format":"flashstep checkpoint","version":2})", "later flashstep"},
      {R"("format":"flashstep checkpoint","version":0})", "version 1"},
      {R"("format":"flashstep checkpoint","version":1,"step":-1})", "at least 0"},
      {R"("format":"flashstep checkpoint","version":1,"step":1.5})", "at least 0"},
      {R"("format":"flashstep checkpoint","version":1,"step":18446744073709551615})", "63 bits"},
      {head + R"("files":{},"state":{}})", "an array"},
      {head + R"("files":[1],"state":{}})", "\"name\""},
      {head + R"("files":[],"state":[]})", "an object"},
      {head + R"("files":[]})", "\"state\""},
      {file(R"("name":"../x","part":"model","size_bytes":1,"xxh3_128":"")"), "file's name"},
      {file(R"("name":"/etc/x","part":"model","size_bytes":1,"xxh3_128":"")"), "file's name"},
      {file(R"("name":"","part":"model","size_bytes":1,"xxh3_128":"")"), "file's name"},
      {file(R"("name":"state.json","part":"model","size_bytes":1,"xxh3_128":"")"),
       "every file once"},
      {file(R"("name":"x","part":"other","size_bytes":1,"xxh3_128":"")"), "part"},
      {file(R"("name":"x","part":"model","size_bytes":-1,"xxh3_128":"")"), "at least 0"},
      {file(R"("name":"x","part":"model","size_bytes":1)"), "\"xxh3_128\""},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_NE(refusal_of_state(with_hash(body)).find(expected), std::string::npos)
        << body << "\n"
        << refusal_of_state(with_hash(body));
  }
}

TEST(CheckpointState, DeepAndHugeFilesAreRefused) {
  EXPECT_NE(refusal_of_state(with_hash("\"a\":" + std::string(1'000'000, '['))).find("nested"),
            std::string::npos);
  const std::string deep = "\"a\":" + std::string(60, '[') + std::string(60, ']') + "}";
  EXPECT_EQ(refusal_of_state(with_hash(deep)).find("nested"), std::string::npos);
  EXPECT_NE(refusal_of_state(std::string((64 << 20) + 1, ' ')).find("at most"), std::string::npos);
}

TEST(CheckpointState, TheTrainersStateMustBeAnObject) {
  for (const char* json : {"", "1", "[]", "{", "null"}) {
    CheckpointState state = example_state();
    state.state_json = json;
    EXPECT_THROW(format_checkpoint_state(state), UserError) << json;
  }
}

}  // namespace
}  // namespace flashstep
