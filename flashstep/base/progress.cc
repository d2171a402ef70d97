#include "flashstep/base/progress.h"

#include <algorithm>
#include <chrono>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "flashstep/base/text.h"

namespace flashstep {
namespace {

constexpr int kBarCells = 24;
constexpr double kRedrawSeconds = 0.1;  // faster than the eye needs, slow beside the work

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

size_t terminal_columns(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// Cells, not bytes: every UTF-8 sequence that this file prints is one cell wide.
void truncate_to_cells(std::string& line, size_t cells) {
  size_t at = 0;
  for (; at < line.size(); ++at) {
    const bool starts_cell = (static_cast<unsigned char>(line[at]) & 0xC0) != 0x80;
    if (starts_cell && cells-- == 0) break;
  }
  line.resize(at);
}

std::string bar(double fraction) {
  const int filled = static_cast<int>(fraction * kBarCells + 1e-9);
  std::string out = "│";
  for (int i = 0; i < kBarCells; ++i) out += i < filled ? "█" : "·";
  return out + "│";
}

}  // namespace

ProgressBar::ProgressBar(std::string label, Unit unit, std::FILE* out, double plain_seconds)
    : label_(std::move(label)),
      unit_(unit),
      out_(out),
      is_terminal_(::isatty(::fileno(out)) != 0),
      plain_seconds_(plain_seconds),
      started_(now_seconds()) {}

ProgressBar::~ProgressBar() { finish(); }

std::string ProgressBar::render(double elapsed_seconds) const {
  const auto amount = [&](uint64_t value) {
    return unit_ == Unit::kBytes ? human_bytes(value) : with_commas(static_cast<int64_t>(value));
  };
  std::string line = label_ + " ";
  const double fraction =
      total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 0;
  if (total_ > 0) {
    if (is_terminal_) line += bar(fraction) + " ";
    line += str(static_cast<int>(fraction * 100), " %  ", amount(done_), " / ", amount(total_));
  } else {
    line += amount(done_);
  }
  if (done_ > started_at_ && done_ < total_) {
    const double rate = static_cast<double>(done_ - started_at_) / elapsed_seconds;
    line += str("  ", human_seconds(static_cast<double>(total_ - done_) / rate), " left");
  } else {
    line += str("  ", human_seconds(elapsed_seconds));
  }
  if (!note_.empty()) line += "  " + note_;
  return line;
}

void ProgressBar::update(uint64_t done, uint64_t total, const std::string& note) {
  if (!any_update_) started_at_ = done;  // a resumed run starts in the middle
  any_update_ = true;
  done_ = done;
  total_ = total;
  note_ = note;
  drawn_ = false;
  const double now = now_seconds();
  if (now - last_drawn_ < (is_terminal_ ? kRedrawSeconds : plain_seconds_)) return;
  last_drawn_ = now;
  drawn_ = true;
  std::string line = render(std::max(now - started_, 1e-9));
  if (is_terminal_) {
    truncate_to_cells(line, terminal_columns(out_) - 1);
    std::fprintf(out_, "\r\033[K%s", line.c_str());
  } else {
    std::fprintf(out_, "%s\n", line.c_str());
  }
  std::fflush(out_);
}

void ProgressBar::print(const std::string& text) {
  std::fprintf(out_, is_terminal_ ? "\r\033[K%s\n" : "%s\n", text.c_str());
  std::fflush(out_);
  last_drawn_ = is_terminal_ ? -1e9 : last_drawn_;
}

void ProgressBar::finish() {
  if (std::exchange(finished_, true) || !any_update_) return;
  if (is_terminal_ || !drawn_) {  // a terminal's line may have been overwritten by print()
    last_drawn_ = -1e9;
    update(done_, total_, note_);
  }
  if (is_terminal_) std::fputc('\n', out_);
  std::fflush(out_);
}

ProgressFunction ProgressBar::callback() {
  return [this](uint64_t done, uint64_t total) { update(done, total); };
}

}  // namespace flashstep
