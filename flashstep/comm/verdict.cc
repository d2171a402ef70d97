#include "flashstep/comm/verdict.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "flashstep/base/text.h"

namespace flashstep {
namespace {

// Names joined, and the verb in the right number: "rank 1 (...) and rank 3 (...) have" and `did`.
template <typename... Parts>
Verdict blame(const std::vector<Peer>& peers, const Parts&... did) {
  std::vector<std::string> names;
  for (const Peer& peer : peers) names.push_back(peer.name);
  return {str(join(names, " and "), names.size() == 1 ? " has" : " have", did...),
          peers.front().rank};
}

bool is_there(const Peer& peer) {
  return peer.beat.state == State::kRunning || peer.beat.state == State::kBroken ||
         peer.beat.state == State::kParting;
}

std::optional<Verdict> lost(const std::vector<Peer>& peers, bool broken, const Patience& patience) {
  const double limit = broken ? patience.suspicion_seconds : patience.silence_seconds;
  std::vector<Peer> silent;
  double shortest = 0;
  for (const Peer& peer : peers) {
    if (!is_there(peer) || peer.silent_seconds < limit) continue;
    shortest = silent.empty() ? peer.silent_seconds : std::min(shortest, peer.silent_seconds);
    silent.push_back(peer);
  }
  if (silent.empty()) return std::nullopt;
  return blame(silent, " not been heard for ", fixed(shortest, 1), " s",
               broken ? ", and connections to it broke" : "");
}

// Who left; `before` the others' last collective on GPUs, or at all. (Messages from one rank to one
// other count as launched, too, through Gloo: those counts differ by right.)
std::optional<Verdict> gone(const std::vector<Peer>& peers, bool before) {
  uint64_t most = 0;
  for (const Peer& peer : peers) most = std::max(most, peer.beat.on_gpu);
  std::vector<Peer> left;
  for (const Peer& peer : peers) {
    const bool parted = peer.beat.state == State::kLeft || peer.beat.state == State::kParting;
    if (parted && !(before && peer.beat.on_gpu == most)) left.push_back(peer);
  }
  if (left.empty()) return std::nullopt;
  return blame(left, " left while others still communicate");
}

// Who launched fewer, by the count that `launched` takes from a beat, and is idle for that long.
std::optional<Verdict> behind(const std::vector<Peer>& peers, uint64_t Heartbeat::*launched,
                              double idle_seconds) {
  uint64_t most = 0;
  for (const Peer& peer : peers) most = std::max(most, peer.beat.*launched);
  std::vector<Peer> late;
  for (const Peer& peer : peers) {
    if (peer.beat.*launched < most && peer.idle_seconds >= idle_seconds) late.push_back(peer);
  }
  if (late.empty()) return std::nullopt;
  return blame(late, " launched ", late.front().beat.*launched,
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

std::string encode(const Verdict& verdict) {
  return verdict.rank < 0 ? verdict.sentence : str(verdict.rank, " ", verdict.sentence);
}

Verdict decode_verdict(const std::string& text) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const size_t digits = static_cast<size_t>(end - text.data());
  if (error != std::errc() || digits == text.size() || text[digits] != ' ') return {text};
  return {text.substr(digits + 1), rank};
}

std::optional<Verdict> judge(const std::vector<Peer>& peers, double broken_seconds,
                             const Patience& patience) {
  const bool broken = broken_seconds > 0;
  if (auto verdict = lost(peers, broken, patience)) return verdict;
  // NCCL's kernels wait without an error when a peer is gone, but the counts tell.
  if (auto verdict = gone(peers, /*before=*/true)) return verdict;
  if (auto verdict = behind(peers, &Heartbeat::on_gpu, patience.collective_seconds)) return verdict;
  // A dead rank's silence would have shown by now.
  if (broken_seconds <= 2 * patience.suspicion_seconds) return std::nullopt;
  if (auto verdict = gone(peers, /*before=*/false)) return verdict;
  return behind(peers, &Heartbeat::launched, /*idle_seconds=*/0);
}

}  // namespace flashstep
