// Event files are TFRecords: a record is its length (8 bytes, little-endian), the masked CRC-32C of
// those 8 bytes, the data, and the masked CRC-32C of the data. The data is an Event message in
// protobuf's wire format. Sources: tensorflow/core/lib/io/record_writer.h,
// tensorflow/core/util/event.proto, framework/summary.proto;
// https://protobuf.dev/programming-guides/encoding.
#include "flashstep/train/tensorboard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr std::string_view kFilePrefix = "events.out.tfevents.";
// From version 2 on readers purge at session starts instead of guessing from the steps' order
// (tensorboard/backend/event_processing/event_accumulator.py).
constexpr std::string_view kFileVersion = "brain.Event:2";

// CRC-32C (Castagnoli), reflected polynomial 0x82F63B78, one byte at a time: events are short.
constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

// TFRecord masks its checksums, so that data that holds checksums itself is still covered well.
uint32_t masked_crc(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data)
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

template <typename T>
void append_raw(std::string& out, T value) {  // little-endian, as the machine is
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// A protobuf message under construction. Fields are numbered as in the .proto files.
class Message {
 public:
  Message& integer(int field, uint64_t value) {
    tag(field, 0);
    varint(value);
    return *this;
  }
  Message& float64(int field, double value) {
    tag(field, 1);
    append_raw(bytes_, value);
    return *this;
  }
  Message& float32(int field, float value) {
    tag(field, 5);
    append_raw(bytes_, value);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void tag(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
Message event_at(int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return Message().float64(1, now.count()).integer(2, static_cast<uint64_t>(step));
}

int64_t seconds_in_name(const std::string& name) {
  int64_t seconds = 0;
  if (name.compare(0, kFilePrefix.size(), kFilePrefix) == 0) {
    std::from_chars(name.data() + kFilePrefix.size(), name.data() + name.size(), seconds);
  }
  return seconds;
}

// events.out.tfevents.SECONDS.HOST.PID: readers take files in the order of their names, so SECONDS
// is later than that of any file there, also when two runs start within a second or the clock was
// set back.
std::string next_file_name(const std::filesystem::path& directory) {
  int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    seconds = std::max(seconds, seconds_in_name(entry.path().filename().string()) + 1);
  }
  char host[256] = "unknown";
  ::gethostname(host, sizeof host - 1);
  return str(kFilePrefix, seconds, '.', host, '.', ::getpid());
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& directory, int64_t first_step) {
  make_directories(directory);
  path_ = directory / next_file_name(directory);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_errno(errno, str("cannot create ", path_));
  try {
    append(event_at(0).text(3, kFileVersion).bytes());
    // SessionLog: status = 1, whose value START is 1.
    append(event_at(first_step).message(7, Message().integer(1, 1)).bytes());
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

EventWriter::~EventWriter() { ::close(descriptor_); }

void EventWriter::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  Message summary;  // Summary: value = 1. Value: tag = 1, simple_value = 2.
  for (const auto& [tag, value] : values) {
    summary.message(1, Message().text(1, tag).float32(2, static_cast<float>(value)));
  }
  append(event_at(step).message(5, summary).bytes());
}

void EventWriter::text(int64_t step, const std::string& tag, std::string_view text) {
  constexpr uint64_t kStringType = 7;  // DataType.DT_STRING
  // TensorProto: dtype = 1, tensor_shape = 2, string_val = 8. TensorShapeProto: dim = 2. Dim: size
  // = 1.
  const Message shape = Message().message(2, Message().integer(1, 1));
  const Message tensor = Message().integer(1, kStringType).message(2, shape).text(8, text);
  // SummaryMetadata: plugin_data = 1. PluginData: plugin_name = 1.
  const Message metadata = Message().message(1, Message().text(1, "text"));
  // Value: tag = 1, tensor = 8, metadata = 9.
  const Message value = Message().text(1, tag).message(8, tensor).message(9, metadata);
  append(event_at(step).message(5, Message().message(1, value)).bytes());
}

// One write a record: a reader that follows the file sees no half of one.
void EventWriter::append(std::string_view event) {
  std::string record;
  append_raw(record, static_cast<uint64_t>(event.size()));
  append_raw(record, masked_crc(record));
  record += event;
  append_raw(record, masked_crc(event));
  for (size_t done = 0; done < record.size();) {
    const ssize_t written = ::write(descriptor_, record.data() + done, record.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(errno, str("cannot write ", path_));
    done += static_cast<size_t>(written);
  }
}

}  // namespace flashstep
