// RUN/metrics.jsonl: one JSON object a line, each with an integer "step", in the order of the
// steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace flashstep {

class MetricsLog {
 public:
  // Opens `path` for appending; creates it if missing. A torn last line, which a process killed
  // while writing leaves, is cut off. MachineError if the file cannot be opened.
  explicit MetricsLog(const std::filesystem::path& path);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Removes the lines of steps after `step`, which a run resumed from a checkpoint of `step` writes
  // again
  // (-1: all lines). Returns the step of the last line that stays, -1 if none does: less than
  // `step` means that lines were lost outside of our hands. UserError for a line that is no JSON
  // object with an integer "step" or that goes back in steps.
  int64_t truncate_after(int64_t step);

  // Appends `object`, a JSON object without line breaks, and a line break, in one write: a reader
  // never sees half a line. MachineError if that fails, or if another file or none stands at the
  // path by now (the run's directory was removed or moved); the file is then as before.
  void append(std::string_view object);

  // Gives the last line more members: JSON without its braces. MachineError as for append().
  void add_to_last(std::string_view members);

  // The last line; empty: there is none.
  std::string last() const;

  // Makes the lines durable (fsync). Before every checkpoint, so that a power failure cannot leave
  // a checkpoint without its metrics. MachineError as for append().
  void sync();

 private:
  void require_in_place() const;
  void write_at(uint64_t begin, std::string_view bytes);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace flashstep
