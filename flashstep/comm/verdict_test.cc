#include "flashstep/comm/verdict.h"

#include <gtest/gtest.h>

namespace flashstep {
namespace {

constexpr Patience kPatience = {30, 5, 1800};

Peer peer(int rank, double silent_seconds, State state = State::kRunning, uint64_t launched = 7) {
  return {rank, "rank " + std::to_string(rank), {10, launched, state, 0}, silent_seconds, 0};
}

std::string verdict(const std::vector<Peer>& peers, double broken_seconds = 0) {
  return judge(peers, broken_seconds, kPatience).value_or(Verdict{"nobody"}).sentence;
}

TEST(Verdict, BeatsAreReadAsTheyWereWritten) {
  const auto beat = decode(encode({17, 342, State::kBroken, 120}));
  ASSERT_TRUE(beat);
  EXPECT_EQ(beat->count, 17u);
  EXPECT_EQ(beat->launched, 342u);
  EXPECT_EQ(beat->state, State::kBroken);
  EXPECT_EQ(beat->on_gpu, 120u);
  for (const char* wrong : {"", "17", "17 342", "17 342 r", "17 342 x 1", "r 1 2 3"}) {
    EXPECT_FALSE(decode(wrong)) << wrong;
  }
}

TEST(Verdict, TheRankGoesWithTheSentence) {
  const auto lost = judge({peer(0, 0), peer(1, 31), peer(2, 40)}, 0, kPatience);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->rank, 1);
  for (const Verdict& verdict : {*lost, Verdict{"rank 2 has not come"}, Verdict{"7 x", 12}}) {
    EXPECT_EQ(decode_verdict(encode(verdict)).sentence, verdict.sentence);
    EXPECT_EQ(decode_verdict(encode(verdict)).rank, verdict.rank);
  }
}

TEST(Verdict, NobodyIsToBlameWhileAllAreHeard) {
  EXPECT_EQ(verdict({peer(0, 0), peer(1, 29.9)}), "nobody");
  EXPECT_EQ(verdict({peer(0, 0), peer(1, 4.9)}, 3), "nobody");
}

TEST(Verdict, ASilentRankIsLost) {
  EXPECT_EQ(verdict({peer(0, 0), peer(1, 1), peer(2, 30.25)}),
            "rank 2 has not been heard for 30.2 s");
  EXPECT_EQ(verdict({peer(0, 0), peer(1, 31), peer(2, 40)}),
            "rank 1 and rank 2 have not been heard for 31.0 s");
}

TEST(Verdict, ABrokenConnectionMakesImpatient) {
  EXPECT_EQ(verdict({peer(0, 0), peer(1, 5.5)}, 1),
            "rank 1 has not been heard for 5.5 s, and connections to it broke");
}

TEST(Verdict, WhoSaidGoodbyeIsNotLost) {
  EXPECT_EQ(verdict({peer(0, 0), peer(1, 500, State::kLeft), peer(2, 500, State::kTold)}),
            "nobody");
}

TEST(Verdict, WhoLeftWhileOthersCommunicateIsNamed) {
  const std::vector<Peer> peers = {peer(0, 0, State::kBroken), peer(1, 500, State::kLeft)};
  EXPECT_EQ(verdict(peers, 9), "nobody");  // a dead rank's silence would show first
  EXPECT_EQ(verdict(peers, 10.5), "rank 1 has left while others still communicate");
}

TEST(Verdict, WhoLeftBeforeTheLastCollectiveOnGpusIsNamedAtOnce) {
  const auto on_gpu = [](Peer peer, uint64_t launched) {
    peer.beat.on_gpu = launched;
    return peer;
  };
  const std::vector<Peer> peers = {on_gpu(peer(0, 0), 7), on_gpu(peer(1, 1, State::kLeft), 6),
                                   on_gpu(peer(2, 1, State::kLeft), 7)};
  EXPECT_EQ(verdict(peers), "rank 1 has left while others still communicate");
  EXPECT_EQ(verdict({on_gpu(peer(0, 0), 7), on_gpu(peer(1, 1, State::kParting), 6)}),
            "rank 1 has left while others still communicate");
  // Until all part it must be heard, unlike one that has left.
  EXPECT_EQ(verdict({peer(0, 0), peer(1, 31, State::kParting)}),
            "rank 1 has not been heard for 31.0 s");
  // Whose beat is only older than the leaver's word.
  EXPECT_EQ(
      verdict({on_gpu(peer(0, 0), 7), on_gpu(peer(1, 1), 6), on_gpu(peer(2, 1, State::kLeft), 7)}),
      "nobody");
  // On the CPU messages count, too, and a rank may have more of them than one that left.
  EXPECT_EQ(verdict({peer(0, 0, State::kRunning, 9), peer(1, 1, State::kLeft, 6)}), "nobody");
}

// The host waits in a kernel that waits, and no connection breaks.
TEST(Verdict, WhoIsCaughtElsewhereWhileGpusWaitIsNamed) {
  std::vector<Peer> peers = {peer(0, 0), peer(1, 1)};
  peers[0].beat.on_gpu = 18;
  peers[1].beat.on_gpu = 17;
  peers[0].idle_seconds = peers[1].idle_seconds = 1799;
  EXPECT_EQ(verdict(peers), "nobody");
  peers[0].idle_seconds = peers[1].idle_seconds = 1801;
  EXPECT_EQ(verdict(peers), "rank 1 has launched 17 collectives, when others launched 18 and wait");
  peers[1].beat.on_gpu = 18;  // all compute, for as long as they like
  EXPECT_EQ(verdict(peers), "nobody");
}

TEST(Verdict, WhoLaunchedFewerIsNamed) {
  const std::vector<Peer> peers = {peer(0, 0, State::kBroken, 18), peer(1, 1, State::kRunning, 17),
                                   peer(2, 0, State::kBroken, 18)};
  EXPECT_EQ(verdict(peers, 11),
            "rank 1 has launched 17 collectives, when others launched 18 and wait");
  EXPECT_EQ(verdict({peer(0, 0, State::kBroken), peer(1, 1, State::kBroken)}, 100), "nobody");
}

}  // namespace
}  // namespace flashstep
