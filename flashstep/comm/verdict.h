// What a rank says of itself in its heartbeats, and what the judge makes of everybody's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flashstep {

enum class State : char {
  kRunning = 'r',
  kBroken = 'b',   // a collective failed here, and it is not known why
  kTold = 't',     // knows the verdict, and is ending with it
  kParting = 'p',  // has launched all that it will, and waits for the others to part together
  kLeft = 'l',     // ended as it should
};

// A heartbeat as it stands in the store: "17 342 r 120".
struct Heartbeat {
  uint64_t count = 0;     // of heartbeats; one that does not grow is not heard
  uint64_t launched = 0;  // collectives
  State state = State::kRunning;
  uint64_t on_gpu = 0;  // collectives that NCCL took, of `launched`
};
std::string encode(const Heartbeat& beat);
std::optional<Heartbeat> decode(const std::string& text);

struct Peer {
  int rank = 0;
  std::string name;  // "rank 2 (process 4711 on node7)"
  Heartbeat beat;
  double silent_seconds = 0;  // since its count last grew
  double idle_seconds = 0;    // since its on_gpu last grew
};

struct Patience {
  double silence_seconds;    // after which a rank is lost
  double suspicion_seconds;  // the same, when some rank's connections broke
  // After which a collective on GPUs, in which others wait without an error, is not launched any
  // more.
  double collective_seconds;
};

// Who is to blame, and the sentence that names them.
struct Verdict {
  std::string sentence;  // empty: there is none yet
  int rank = -1;         // the first; -1: not known
  bool empty() const { return sentence.empty(); }
};
std::string encode(const Verdict& verdict);  // "2 rank 2 (...) has ...", as it stands in the store
Verdict decode_verdict(const std::string& text);

// The verdict, if somebody is to blame; `broken_seconds` is how long the judge
// has known of a failed collective (0: it knows of none). In this order: a rank that is not heard,
// one that left before a collective on GPUs that others launched, one that is caught elsewhere
// while others wait on GPUs, one that left while connections broke, one that has launched fewer
// collectives.
std::optional<Verdict> judge(const std::vector<Peer>& peers, double broken_seconds,
                             const Patience& patience);

}  // namespace flashstep
