// Ranks that die, hang, fail or leave: every other rank ends soon, with exit code 1 and one
// sentence that names the rank.
#include <chrono>
#include <csignal>
#include <regex>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

using std::chrono::milliseconds;
using testing::Ranks;

constexpr milliseconds kSilence(3000);
// From the fault to the end of the last rank, on a loaded machine: the silence, and some.
constexpr double kPatienceSeconds = 20;

// What a rank may be doing when another one fails right at the start.
const std::string kBusy = "\\[(all-reduce|connecting the ranks)\\] ";

GroupOptions impatient() {
  GroupOptions options;
  options.timeouts.start = std::chrono::seconds(60);
  options.timeouts.silence = kSilence;
  options.timeouts.grace = milliseconds(2000);
  options.on_stuck = end_process;
  return options;
}

void say(const char* line) {
  std::printf("%s\n", line);
  std::fflush(stdout);
}

// Collectives for ever, as a training loop has them.
void step_forever(const Group& group) {
  at::Tensor gradients = at::ones({100000});
  std::vector<at::Tensor> tensors = {gradients};
  for (int step = 0;; ++step) {
    const auto work =
        group.guarded("all-reduce", [&] { return group.process_group().allreduce(tensors); });
    group.wait(work, "all-reduce");
    if (step == 20) say("stepping");
  }
}

int sentences(const std::string& output) {
  const std::regex ours("flashstep: ");
  return static_cast<int>(
      std::distance(std::sregex_iterator(output.begin(), output.end(), ours), {}));
}

void expect_ended_naming(const Ranks& ranks, int rank, const std::string& pattern) {
  EXPECT_TRUE(ranks.has_ended(rank) && !ranks.was_killed(rank)) << "rank " << rank << "\n"
                                                                << ranks.all_output();
  EXPECT_EQ(ranks.exit_code(rank), 1) << ranks.all_output();
  EXPECT_TRUE(std::regex_search(ranks.output(rank), std::regex(pattern)))
      << "rank " << rank << " should say " << pattern << "\n"
      << ranks.all_output();
  EXPECT_EQ(sentences(ranks.output(rank)), 1) << ranks.output(rank);
}

// Rank `victim` of three gets `signal` while all step.
void strike(int victim, int signal, const std::string& pattern) {
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        try {
          step_forever(Group(environment, impatient()));
        } catch (const LostRank& lost) {
          say(str("lost rank ", lost.rank()).c_str());
          throw;
        }
      },
      [&](Ranks& ranks) {
        for (int rank = 0; rank < 3; ++rank) {
          ASSERT_TRUE(ranks.wait_for_output(rank, "stepping")) << ranks.all_output();
        }
        ranks.signal(victim, signal);
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds, signal == SIGSTOP ? victim : -1))
            << ranks.all_output();
        for (int rank = 0; rank < 3; ++rank) {
          if (rank == victim) continue;
          expect_ended_naming(ranks, rank, pattern);
          EXPECT_NE(ranks.output(rank).find(str("lost rank ", victim, "\n")), std::string::npos);
        }
      });
}

TEST(GroupFaults, AKilledRankIsNamed) {
  strike(1, SIGKILL,
         "flashstep: \\[all-reduce\\] rank 1 \\(process [0-9]+ on .*\\) has not been "
         "heard for .* s, and connections to it broke\n");
}

TEST(GroupFaults, AStoppedRankIsNamed) {
  strike(2, SIGSTOP,
         "flashstep: \\[all-reduce\\] rank 2 \\(process [0-9]+ on .*\\) has not been "
         "heard for 3\\.[0-9] s\n");
}

TEST(GroupFaults, TheStoresHolderKilled) {
  strike(0, SIGKILL,
         "flashstep: \\[all-reduce\\] rank 0 \\(process .*\\), which holds the store, is "
         "gone\n");
}

TEST(GroupFaults, TheStoresHolderStopped) {
  strike(0, SIGSTOP,
         "flashstep: \\[all-reduce\\] rank 0 \\(process .*\\), which holds the store, has "
         "not answered for 3\\.[0-9] s\n");
}

TEST(GroupFaults, AFailureIsToldToTheOthers) {
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        Group group(environment, impatient());
        if (group.rank() == 2) {
          group.fail("no space left on device");
          throw MachineError("no space left on device");
        }
        step_forever(group);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds));
        for (const int rank : {0, 1}) {
          expect_ended_naming(ranks, rank, kBusy + "rank 2 failed: no space left on device");
        }
        expect_ended_naming(ranks, 2, "flashstep: no space left on device");
      });
}

// A caller's mistake on one rank only, and nobody called fail().
TEST(GroupFaults, AnExceptionIsToldToTheOthers) {
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const Group group(environment, impatient());
        if (group.is_first()) throw UserError("a mistake");
        step_forever(group);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(0), 2);
        expect_ended_naming(ranks, 1, kBusy + "rank 0 ended with an error of its own");
      });
}

// Messages to one rank only, as states are brought to rank 0, are no collectives: who has sent its
// own and leaves is not missed while rank 0 still writes them down.
TEST(GroupFaults, WhoHasSentItsPartMayLeave) {
  testing::run_ranks(3, [](const Environment& environment) {
    GroupOptions options = impatient();
    options.timeouts.silence = milliseconds(1500);
    const Group group(environment, options);
    std::vector<at::Tensor> message = {at::full({100}, 1.0 * group.rank())};
    if (!group.is_first()) {
      for (int i = 0; i < 5; ++i) group.wait(group.process_group().send(message, 0, 0), "send");
      return;
    }
    for (const int rank : {1, 2}) {
      for (int i = 0; i < 5; ++i) {
        group.wait(group.process_group().recv(message, rank, 0), "receive");
        EXPECT_EQ(message[0][0].item<double>(), rank);
      }
    }
    std::this_thread::sleep_for(milliseconds(4000));
    group.check();
  });
}

TEST(GroupFaults, WhoLeavesEarlyIsNamed) {
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        const Group group(environment, impatient());
        group.barrier();
        if (group.rank() != 1) step_forever(group);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(1), 0) << ranks.output(1);
        for (const int rank : {0, 2}) {
          expect_ended_naming(ranks, rank,
                              "rank 1 \\(.*\\) has left while others still communicate");
        }
      });
}

// Heard, but caught elsewhere: it never launches the collective in which the others wait.
TEST(GroupFaults, WhoIsCaughtElsewhereIsNamed) {
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        GroupOptions options = impatient();
        options.timeouts.collective = milliseconds(2000);
        const Group group(environment, options);
        group.barrier();
        if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(300));
        step_forever(group);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        for (const int rank : {0, 1}) {
          expect_ended_naming(ranks, rank,
                              "\\[all-reduce\\] rank 2 \\(.*\\) has launched [0-9]+ "
                              "collectives, when others launched [0-9]+ and wait");
        }
        // It never comes back by itself: on_stuck ended it, with the same sentence.
        expect_ended_naming(ranks, 2, "flashstep: rank 2 \\(.*\\) has launched [0-9]+ collectives");
      });
}

// Gloo throws on its own thread then, which nobody catches.
TEST(GroupFaults, DifferentCollectivesAreExplained) {
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const Group group(environment, impatient());
        at::Tensor sum = at::ones({environment.rank == 0 ? 4000 : 32});
        all_reduce(group, sum, Reduce::kSum, "sum");
        all_reduce(group, sum, Reduce::kSum, "sum");
      },
      [](Ranks& ranks) {
        ASSERT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        const std::regex told("another message came than this rank waits for");
        bool is_told = false;
        for (const int rank : {0, 1}) {
          EXPECT_FALSE(ranks.was_killed(rank)) << ranks.all_output();
          EXPECT_EQ(ranks.exit_code(rank), 1) << ranks.all_output();
          is_told = is_told || std::regex_search(ranks.output(rank), told);
        }
        EXPECT_TRUE(is_told) << ranks.all_output();
      });
}

// A long computation, or the preparation of data, is no fault.
TEST(GroupFaults, WhoIsBusyIsNotLost) {
  testing::run_ranks(2, [](const Environment& environment) {
    GroupOptions options = impatient();
    options.timeouts.silence = milliseconds(1500);
    const Group group(environment, options);
    if (group.is_first()) std::this_thread::sleep_for(milliseconds(3000));
    group.barrier("waiting for rank 0's data");
    EXPECT_EQ(group.all_reduce(1.0, Reduce::kSum), 2);
  });
}

// A whole job that is suspended and resumed, as a queueing system may do, goes on.
TEST(GroupFaults, ASuspendedJobGoesOn) {
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        GroupOptions options = impatient();
        options.timeouts.silence = milliseconds(2000);
        const Group group(environment, options);
        say("ready");
        for (int i = 0; i < 30; ++i) {
          group.all_reduce(1.0, Reduce::kSum);
          std::this_thread::sleep_for(milliseconds(100));
        }
        say("done");
      },
      [](Ranks& ranks) {
        for (const int rank : {0, 1}) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
        for (const int rank : {0, 1}) ranks.signal(rank, SIGSTOP);
        std::this_thread::sleep_for(milliseconds(3000));
        for (const int rank : {0, 1}) ranks.signal(rank, SIGCONT);
        EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
        for (const int rank : {0, 1}) EXPECT_EQ(ranks.exit_code(rank), 0) << ranks.all_output();
      });
}

TEST(GroupFaults, WhoDoesNotStartIsNamed) {
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        if (environment.rank == 1) return;
        GroupOptions options = impatient();
        options.timeouts.start = milliseconds(4000);
        const Group group(environment, options);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        for (const int rank : {0, 2}) {
          expect_ended_naming(ranks, rank,
                              "\\[comm\\] waited 4.0 s for 3 ranks to start; not "
                              "there: rank 1\n");
        }
      });
}

TEST(GroupFaults, TwoOfTheSameRankAreRefused) {
  testing::start_ranks(
      3,
      [](Environment environment) {
        if (environment.rank == 2) environment.rank = 1;
        const Group group(environment, impatient());
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        for (int rank = 0; rank < 3; ++rank) {
          EXPECT_NE(ranks.output(rank).find(
                        "[comm] two processes say that they are rank 1 of 3 at 127.0.0.1"),
                    std::string::npos)
              << ranks.all_output();
        }
        EXPECT_EQ(ranks.exit_code(0), 1);
        EXPECT_EQ(ranks.exit_code(1) + ranks.exit_code(2), 3)
            << "2 for the second, 1 for the first";
      });
}

}  // namespace
}  // namespace flashstep
