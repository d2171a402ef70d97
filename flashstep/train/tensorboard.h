// TensorBoard event files: scalars and text, readable while they grow. No TensorFlow, no protobuf
// library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashstep {

// Writes one new event file, named after those that `directory` has so that TensorBoard reads it
// after them. It starts with a session-start event at `first_step`, on which TensorBoard forgets
// what older files say about `first_step` and later: a resumed run shows no step twice.
class EventWriter {
 public:
  // `first_step`: the first step that will be written: 0 for a new run, N + 1 after a checkpoint of
  // step N. Creates `directory` if missing. MachineError if writing fails, here and below.
  EventWriter(const std::filesystem::path& directory, int64_t first_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Values of one step, by tag ("loss/train"); stored as float32, as the format has it.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  void scalar(int64_t step, const std::string& tag, double value) { scalars(step, {{tag, value}}); }
  // Text, which TensorBoard shows as Markdown.
  void text(int64_t step, const std::string& tag, std::string_view text);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(std::string_view event);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace flashstep
