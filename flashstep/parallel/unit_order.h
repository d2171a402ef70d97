// The order in which units are called, so that the next one's tensors travel while one computes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace flashstep {

class UnitOrder {
 public:
  // The root's forward begins.
  void begin() { before_ = std::exchange(called_, {}); }
  void call(size_t unit) { called_.push_back(unit); }
  void forget() { called_.clear(); }

  // The first unit, or the one behind the last that was called, in the forward before; nothing
  // where this forward is another one.
  std::optional<size_t> next_in_forward() const {
    if (!called_.empty() &&
        (called_.size() > before_.size() || before_[called_.size() - 1] != called_.back()))
      return std::nullopt;
    return at(before_, static_cast<int64_t>(called_.size()));
  }
  // The last unit of this forward, or the one that was called before `unit`.
  std::optional<size_t> next_in_backward(std::optional<size_t> unit) const {
    auto place = static_cast<int64_t>(called_.size());
    if (unit) {
      const auto found = std::find(called_.begin(), called_.end(), *unit);
      if (found == called_.end()) return std::nullopt;
      place = found - called_.begin();
    }
    return at(called_, place - 1);
  }

 private:
  static std::optional<size_t> at(const std::vector<size_t>& units, int64_t place) {
    if (place < 0 || place >= static_cast<int64_t>(units.size())) return std::nullopt;
    return units[static_cast<size_t>(place)];
  }

  std::vector<size_t> called_, before_;  // since the root's forward began, and in the one before
};

}  // namespace flashstep
