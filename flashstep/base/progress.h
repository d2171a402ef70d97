// Progress of long work: the work calls a function, whoever started the work decides how it looks.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace flashstep {

// Called from time to time with work done so far and in all (same unit; total 0 when unknown).
using ProgressFunction = std::function<void(uint64_t done, uint64_t total)>;

// One line on stderr: a bar that redraws itself on a terminal, plain lines every `plain_seconds`
// (and at the end) elsewhere. Where the line is too long for the terminal, the bar shrinks first;
// then go the note's last parts, the amounts, the time, the label.
class ProgressBar {
 public:
  enum class Unit { kCount, kBytes };
  ProgressBar(std::string label, Unit unit, std::FILE* out = stderr, double plain_seconds = 10);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `note` stands after the bar, what matters most first, in parts with ", " between them:
  // "loss 2.31, 12,034 tokens/s, 41 % of the limit". Two parts stay longest.
  void update(uint64_t done, uint64_t total, const std::string& note = "");
  // Prints a line of its own without tearing the bar.
  void print(const std::string& line);
  void finish();
  ProgressFunction callback();

 private:
  std::string render(double elapsed_seconds, size_t columns) const;

  std::string label_, note_;
  Unit unit_;
  std::FILE* out_;
  bool can_redraw_;
  double plain_seconds_, started_, last_drawn_ = -1e9;
  uint64_t done_ = 0, total_ = 0, started_at_ = 0;
  bool any_update_ = false, finished_ = false;
  bool drawn_ = false;  // the last update stands on the screen
};

}  // namespace flashstep
