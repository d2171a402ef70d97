#include "flashstep/base/progress.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"

namespace flashstep {
namespace {

constexpr size_t kMostBarCells = 24, kLeastBarCells = 4;
constexpr size_t kUsualColumns = 80;    // of a terminal that does not say
constexpr double kRedrawSeconds = 0.1;  // faster than the eye needs, slow beside the work

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void truncate_to_cells(std::string& line, size_t most) {
  size_t at = 0;
  for (; at < line.size(); ++at) {
    if (cells({&line[at], 1}) == 1 && most-- == 0) break;
  }
  line.resize(at);
}

std::string bar(double fraction, size_t bar_cells) {
  const auto filled = static_cast<size_t>(fraction * static_cast<double>(bar_cells) + 1e-9);
  std::string out = "│";
  for (size_t i = 0; i < bar_cells; ++i) out += i < filled ? "█" : "·";
  return out + "│";
}

std::vector<std::string> parts_of(const std::string& note) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < note.size();) {
    const size_t end = std::min(note.find(", ", at), note.size());
    parts.push_back(note.substr(at, end - at));
    at = end + 2;
  }
  return parts;
}

// A line's parts in order of their places; an empty one is left out.
struct Line {
  std::string label, percent, amounts, time;
  std::vector<std::string> note;

  std::string text(const std::string& drawn_bar) const {
    std::string out = label;
    const auto add = [&](const std::string& part, const char* space) {
      if (!part.empty()) out += (out.empty() ? "" : space) + part;
    };
    add(drawn_bar, " ");
    add(percent, " ");
    add(amounts, percent.empty() ? " " : "  ");
    add(time, "  ");
    add(join(note), "  ");
    return out;
  }

  // Leaves out parts until the line has at most `columns` cells or none can go.
  void fit(size_t columns) {
    const auto is_wide = [&] { return cells(text("")) > columns; };
    while (note.size() > 3 && is_wide()) note.pop_back();
    for (std::string* part : {&amounts, &time, &label}) {
      if (is_wide() && !(note.empty() && percent.empty())) part->clear();
    }
    while (note.size() > 2 && is_wide()) note.pop_back();
    if (is_wide() && !note.empty()) percent.clear();
    while (note.size() > 1 && is_wide()) note.pop_back();
  }
};

}  // namespace

ProgressBar::ProgressBar(std::string label, Unit unit, std::FILE* out, double plain_seconds)
    : label_(std::move(label)),
      unit_(unit),
      out_(out),
      can_redraw_(can_redraw(out)),
      plain_seconds_(plain_seconds),
      started_(now_seconds()) {}

ProgressBar::~ProgressBar() { finish(); }

// 0 columns: a plain line, without a bar.
std::string ProgressBar::render(double elapsed_seconds, size_t columns) const {
  const auto amount = [&](uint64_t value) {
    return unit_ == Unit::kBytes ? human_bytes(value) : with_commas(static_cast<int64_t>(value));
  };
  Line line;
  line.label = label_;
  line.amounts = amount(done_);
  line.note = parts_of(note_);
  const double fraction =
      total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 0;
  if (total_ > 0) {
    line.percent = str(static_cast<int>(fraction * 100), " %");
    line.amounts += " / " + amount(total_);
  }
  line.time = human_seconds(elapsed_seconds);
  if (done_ > started_at_ && done_ < total_) {
    const double rate = static_cast<double>(done_ - started_at_) / elapsed_seconds;
    line.time = human_seconds(static_cast<double>(total_ - done_) / rate) + " left";
  }
  if (columns == 0) return line.text("");
  line.fit(columns);
  const size_t used = cells(line.text(bar(0, 0)));  // what is left is the bar's
  const size_t bar_cells = columns > used ? std::min(columns - used, kMostBarCells) : 0;
  const bool has_bar = total_ > 0 && bar_cells >= kLeastBarCells;
  std::string out = line.text(has_bar ? bar(fraction, bar_cells) : "");
  truncate_to_cells(out, columns);
  return out;
}

void ProgressBar::update(uint64_t done, uint64_t total, const std::string& note) {
  if (!any_update_) started_at_ = done;  // a resumed run starts in the middle
  any_update_ = true;
  done_ = done;
  total_ = total;
  note_ = note;
  drawn_ = false;
  const double now = now_seconds();
  if (now - last_drawn_ < (can_redraw_ ? kRedrawSeconds : plain_seconds_)) return;
  last_drawn_ = now;
  drawn_ = true;
  const size_t columns = terminal_columns(out_);
  // The last column stays free: a cursor behind it would be on the next line.
  const std::string line =
      render(std::max(now - started_, 1e-9), !can_redraw_  ? 0
                                             : columns > 1 ? columns - 1
                                                           : kUsualColumns - 1);
  if (can_redraw_) {
    std::fprintf(out_, "\r\033[K%s", line.c_str());
  } else {
    std::fprintf(out_, "%s\n", line.c_str());
  }
  std::fflush(out_);
}

void ProgressBar::print(const std::string& text) {
  std::fprintf(out_, can_redraw_ ? "\r\033[K%s\n" : "%s\n", text.c_str());
  std::fflush(out_);
  last_drawn_ = can_redraw_ ? -1e9 : last_drawn_;
}

void ProgressBar::finish() {
  if (std::exchange(finished_, true) || !any_update_) return;
  if (can_redraw_ || !drawn_) {  // a terminal's line may have been overwritten by print()
    last_drawn_ = -1e9;
    update(done_, total_, note_);
  }
  if (can_redraw_) std::fputc('\n', out_);
  std::fflush(out_);
}

ProgressFunction ProgressBar::callback() {
  return [this](uint64_t done, uint64_t total) { update(done, total); };
}

}  // namespace flashstep
