// Wall-clock time on the host. Work on a GPU is asynchronous: synchronize before reading the clock.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace flashstep::measure {

// Seconds since an arbitrary start; never goes back (CLOCK_MONOTONIC).
double steady_seconds();

// As strftime() writes it: "%Y-%m-%d %H:%M UTC".
std::string utc_now(const char* format);

struct TimingOptions {
  int warmup = 2;            // calls that are not recorded
  int min_calls = 3;         // recorded at least, however long they take
  int max_calls = 100;       // recorded at most
  double max_seconds = 0.5;  // no further call starts after this time, warm-up not counted
};

// Seconds of each recorded call of `work`, which returns only when its work is done.
std::vector<double> time_calls(const std::function<void()>& work, const TimingOptions& options);

}  // namespace flashstep::measure
