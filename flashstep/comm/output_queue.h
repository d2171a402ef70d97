// Output that is written by a thread of its own: who adds to it never waits for whoever reads it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace flashstep {

// A thread, because no question asked before a write makes it safe: a terminal that has room may
// have less than what is written, a pipe may be filled by another process meanwhile, a disk may
// hang. O_NONBLOCK would be set for everybody who has the same open file: the user's shell, too.
class OutputQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit OutputQueue(int descriptor);  // which is duplicated
  // What waits is dropped. The thread may be caught in a write(), and outlive this object for as
  // long as that takes.
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  // To be written behind all that was added before.
  void add(std::string bytes);
  // So much waits (1 MiB) that whoever can should wait, too.
  bool is_full() const;
  // Since when something waits and nothing of it was taken; nothing where all is written.
  std::optional<Clock::time_point> waits_since() const;
  // What waits is given up, and what is added from now on as well.
  void drop();
  // Why not all could be written, or 0. Whoever read may have left, or closed the terminal: that is
  // no error.
  int error() const;

  // Readable (poll) once there is room again or all is written, until take_news().
  int news() const;
  void take_news();

 private:
  struct State;
  const std::shared_ptr<State> state_;  // the thread's, too
  std::thread thread_;
};

}  // namespace flashstep
