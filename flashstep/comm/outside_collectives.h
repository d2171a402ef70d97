// What the watch must know of collectives that do not go through c10d (peer_copies.h): how many
// this rank launched, and how to end those that wait.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace flashstep {

class OutsideCollectives : public std::enable_shared_from_this<OutsideCollectives> {
 public:
  // With a limit nobody is watched: who waits for a rank for so long ends the process.
  explicit OutsideCollectives(std::chrono::milliseconds limit = std::chrono::milliseconds(0))
      : limit_(limit) {}
  std::chrono::milliseconds limit() const { return limit_; }

  void count() { ++launched_; }
  uint64_t launched() const { return launched_; }

  ~OutsideCollectives() { stop(); }

  // `interrupt` ends what waits. It is called by a thread of the group when a rank is lost, at once
  // if one is already, again and again until the group is gone (what came late may wait anew, and
  // other ranks may undo it), and not after the returned object is gone.
  [[nodiscard]] std::shared_ptr<void> on_loss(std::function<void()> interrupt);
  void interrupt();
  void stop();

 private:
  void repeat();

  const std::chrono::milliseconds limit_;
  std::atomic<uint64_t> launched_ = 0;
  std::mutex mutex_;  // held while an interrupt runs: what it refers to stays
  std::condition_variable news_;
  std::map<int, std::function<void()>> interrupts_;
  int next_ = 0;
  bool lost_ = false, stopped_ = false;
  std::thread repeater_;
};

}  // namespace flashstep
