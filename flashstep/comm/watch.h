// The watch over the ranks of a group.
//
// Two threads a rank. The one that talks writes a heartbeat (verdict.h) to the store every interval
// and reads there: rank 0, the judge, everybody's; the others only rank 0's and the verdict, so
// that the traffic grows with the number of ranks and not with its square. It may hang in the
// store. The one that looks never waits for anything but time: it counts how long each rank, and
// the store, has been silent, and when that is too long gives the verdict. Time in which this
// process itself was stopped is not counted, so that a job that is suspended and resumed as a whole
// blames nobody.
//
// The first verdict, put into the store by compare-and-set, is everybody's. It interrupts what the
// group is caught in: Gloo's connections are shut down, NCCL's communicators aborted, so that the
// collective that waits fails, and wait() throws the verdict in place of its error. Where the store
// itself is gone, each rank says so for itself. A process that does not come back (a hung system
// call, a stuck GPU) is left to `on_stuck` after a time of grace.
//
// A killed rank is named sooner than a stopped one: its connections break, a rank in which a
// collective failed says so in its heartbeat, and the judge's patience becomes shorter.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "flashstep/comm/sockets.h"
#include "flashstep/comm/verdict.h"
#include "flashstep/group.h"

namespace flashstep {

// Keys in the store, written before a Watch starts: every rank's first heartbeat, and kNoVerdict.
std::string beat_key(int rank);
inline const char* const kVerdictKey = "verdict";
inline const char* const kNoVerdict = "none";

class Watch {
 public:
  struct Options {
    int rank = 0, world_size = 1;
    Timeouts timeouts;
    std::vector<std::string> names;  // of the ranks; others than rank 0 need only rank 0's
    std::string store_name;          // "rank 0 (...), which holds the store,"
    std::function<void(const std::string&)> on_stuck;
  };

  // `store` is a connection of its own, made of `connection`.
  Watch(c10::intrusive_ptr<c10d::Store> store, std::vector<OpenSocket> connection, Options options);
  // leave(), if nobody called it.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  struct Launched {
    uint64_t all = 0, on_gpu = 0;
  };
  // `launched` tells how many collectives this rank launched; `interrupt` makes those that wait
  // fail. Until unguard().
  void guard(std::function<Launched()> launched, std::function<void()> interrupt);
  void unguard();

  // Empty while all is well.
  Verdict verdict() const;
  // After a collective failed here: the verdict when it comes; empty if none comes in the time in
  // which a silent rank would have been found.
  Verdict await_verdict();
  // The caller is ending because of the verdict: on_stuck is not needed any more.
  void noticed();
  // Heartbeats say from now on that this rank launches no more; the watch goes on until leave().
  void part();
  // What comes before leave() may hang: on_stuck is needed again until then.
  void hurry();
  // After a verdict: until the other ranks have had the time to hear it.
  void wait_until_heard();
  // Makes `sentence`, of this rank, the verdict, unless there is one.
  void tell(const std::string& sentence);
  // Says goodbye; rank 0 stays for the others' sake until they have left or know the verdict.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;

  void talk();
  bool exchange();
  void look();
  void grow_silence(double seconds);
  void judge_all();
  void set_verdict(const Verdict& verdict);
  void act(std::unique_lock<std::mutex>& lock);
  bool others_are_off() const;
  double stay_seconds() const;
  void count_launched();
  bool is_judge() const { return options_.rank == 0; }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::vector<OpenSocket> connection_;
  const Options options_;
  const double interval_seconds_;
  const Patience patience_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable news_;
  Heartbeat own_;
  std::vector<Peer> peers_;  // those this rank hears: the judge all others, others rank 0
  double store_silent_seconds_ = 0, broken_seconds_ = 0, own_idle_seconds_ = 0;
  bool store_gone_ = false;
  Verdict verdict_;
  bool published_ = false;  // the store has the verdict
  Clock::time_point verdict_at_, published_at_;
  bool urgent_ = false;  // talk now, not at the next interval
  bool leaving_ = false, talk_ended_ = false, stop_looking_ = false;
  Clock::time_point left_at_;
  std::optional<Clock::time_point> stuck_at_;
  std::function<Launched()> launched_;
  std::function<void()> interrupt_;
  bool interrupted_ = false;
  std::thread interrupter_, talker_, looker_;
};

}  // namespace flashstep
