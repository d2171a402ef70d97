#include "flashstep/measure/clock.h"

#include <chrono>
#include <ctime>

namespace flashstep::measure {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string utc_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

std::vector<double> time_calls(const std::function<void()>& work, const TimingOptions& options) {
  for (int i = 0; i < options.warmup; ++i) work();
  std::vector<double> seconds;
  const double started = steady_seconds();
  while (static_cast<int>(seconds.size()) < options.max_calls) {
    const double before = steady_seconds();
    const bool late = before - started >= options.max_seconds;
    if (late && static_cast<int>(seconds.size()) >= options.min_calls) break;
    work();
    seconds.push_back(steady_seconds() - before);
  }
  return seconds;
}

}  // namespace flashstep::measure
