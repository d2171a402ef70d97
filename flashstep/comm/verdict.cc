#include "flashstep/comm/verdict.h"

#include <algorithm>
#include <sstream>

#include "flashstep/base/text.h"

namespace flashstep {
namespace {

// Names joined, and the verb in the right number: "rank 1 (...) and rank 3 (...) have".
std::string subject(const std::vector<Peer>& peers) {
  std::vector<std::string> names;
  for (const Peer& peer : peers) names.push_back(peer.name);
  return join(names, " and ") + (names.size() == 1 ? " has" : " have");
}

bool is_there(const Peer& peer) {
  return peer.beat.state == State::kRunning || peer.beat.state == State::kBroken ||
         peer.beat.state == State::kParting;
}

std::optional<std::string> lost(const std::vector<Peer>& peers, bool broken,
                                const Patience& patience) {
  const double limit = broken ? patience.suspicion_seconds : patience.silence_seconds;
  std::vector<Peer> silent;
  double shortest = 0;
  for (const Peer& peer : peers) {
    if (!is_there(peer) || peer.silent_seconds < limit) continue;
    shortest = silent.empty() ? peer.silent_seconds : std::min(shortest, peer.silent_seconds);
    silent.push_back(peer);
  }
  if (silent.empty()) return std::nullopt;
  return str(subject(silent), " not been heard for ", fixed(shortest, 1), " s",
             broken ? ", and connections to it broke" : "");
}

// Who left; `before` the others' last collective on GPUs, or at all. (Messages from one rank to one
// other count as launched, too, through Gloo: those counts differ by right.)
std::optional<std::string> gone(const std::vector<Peer>& peers, bool before) {
  uint64_t most = 0;
  for (const Peer& peer : peers) most = std::max(most, peer.beat.on_gpu);
  std::vector<Peer> left;
  for (const Peer& peer : peers) {
    const bool parted = peer.beat.state == State::kLeft || peer.beat.state == State::kParting;
    if (parted && !(before && peer.beat.on_gpu == most)) left.push_back(peer);
  }
  if (left.empty()) return std::nullopt;
  return str(subject(left), " left while others still communicate");
}

// Who launched fewer, by the count that `launched` takes from a beat, and is idle for that long.
std::optional<std::string> behind(const std::vector<Peer>& peers, uint64_t Heartbeat::*launched,
                                  double idle_seconds) {
  uint64_t most = 0;
  for (const Peer& peer : peers) most = std::max(most, peer.beat.*launched);
  std::vector<Peer> late;
  for (const Peer& peer : peers) {
    if (peer.beat.*launched < most && peer.idle_seconds >= idle_seconds) late.push_back(peer);
  }
  if (late.empty()) return std::nullopt;
  return str(subject(late), " launched ", late.front().beat.*launched,
             " collectives, when others launched ", most, " and wait");
}

}  // namespace

std::string encode(const Heartbeat& beat) {
  return str(beat.count, " ", beat.launched, " ", static_cast<char>(beat.state), " ", beat.on_gpu);
}

std::optional<Heartbeat> decode(const std::string& text) {
  std::istringstream in(text);
  Heartbeat beat;
  char state = 0;
  in >> beat.count >> beat.launched >> state >> beat.on_gpu;
  if (in.fail() || std::string("rbtpl").find(state) == std::string::npos) return std::nullopt;
  beat.state = static_cast<State>(state);
  return beat;
}

std::optional<std::string> judge(const std::vector<Peer>& peers, double broken_seconds,
                                 const Patience& patience) {
  const bool broken = broken_seconds > 0;
  if (auto sentence = lost(peers, broken, patience)) return sentence;
  // NCCL's kernels wait without an error when a peer is gone, but the counts tell.
  if (auto sentence = gone(peers, /*before=*/true)) return sentence;
  if (auto sentence = behind(peers, &Heartbeat::on_gpu, patience.collective_seconds))
    return sentence;
  // A dead rank's silence would have shown by now.
  if (broken_seconds <= 2 * patience.suspicion_seconds) return std::nullopt;
  if (auto sentence = gone(peers, /*before=*/false)) return sentence;
  return behind(peers, &Heartbeat::launched, /*idle_seconds=*/0);
}

}  // namespace flashstep
