// Tests with several ranks: the test's own program, started once per rank.
//
//   TEST(Ddp, AveragesGradients) {
//     testing::run_ranks(3, [](const Environment& environment) {
//       Group group(environment);
//       EXPECT_EQ(group.all_reduce(1.0, Reduce::kSum), 3);
//     });
//   }
//
// The first process starts three more of the same program that run this test only, in which
// run_ranks calls the body and ends the process: with 0, with 1 after a failed EXPECT, or with the
// exit code of the exception that left the body. Tests in which ranks die use start_ranks.
#pragma once

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <poll.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/comm/child.h"
#include "flashstep/detail/environment.h"
#include "flashstep/error.h"

namespace flashstep::testing {

using RankBody = std::function<void(const Environment&)>;

// The ranks of one test, seen from the process that started them.
class Ranks {
 public:
  Ranks(int world_size, int call, const Variables& extra);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int world_size() const { return static_cast<int>(ranks_.size()); }
  void signal(int rank, int signal_number) { kill(ranks_[rank].child.pid, signal_number); }
  // Until rank `rank` has printed `text`; false after `seconds`, or when it ended before.
  bool wait_for_output(int rank, const std::string& text, double seconds = 60);
  // Until rank `rank` has ended; false after `seconds`.
  bool wait_for_end(int rank, double seconds = 60);
  // Until all but `excepted` have ended.
  bool wait_for_all(double seconds = 60, int excepted = -1);

  bool has_ended(int rank) const { return ranks_[rank].ended; }
  int exit_code(int rank) const { return flashstep::exit_code(ranks_[rank].status); }
  bool was_killed(int rank) const { return WIFSIGNALED(ranks_[rank].status); }
  const std::string& output(int rank) const { return ranks_[rank].output; }  // stdout and stderr
  std::string all_output() const;

 private:
  struct Rank {
    Child child;
    std::string output;
    bool ended = false;
    int status = 0;
  };
  bool wait_until(const std::function<bool()>& done, double seconds);
  void read_output(Rank& rank);

  const FreePort port_;
  std::vector<Rank> ranks_;
};

namespace internal {

// Which call of start_ranks in the test this process is a rank for; -1 in the starting process.
inline int call_of_rank() {
  const char* call = std::getenv("FLASHSTEP_TEST_CALL");
  return call ? std::atoi(call) : -1;
}

// Runs the body as main() would run a command, and ends this process.
[[noreturn]] inline void be_rank(const RankBody& body) {
  int code = 0;
  try {
    body(read_environment());
    code = ::testing::Test::HasFailure() ? 1 : 0;
  } catch (const UserError& error) {
    std::fprintf(stderr, "flashstep: %s\n", error.what());
    code = 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashstep: %s\n", error.what());
    code = 1;
  }
  std::fflush(stdout);
  std::exit(code);
}

}  // namespace internal

// Starts `world_size` ranks that run `body`, with the `extra` variables; `watch` runs meanwhile in
// the starting process. Returns when `watch` does; ranks that still run are killed.
inline void start_ranks(int world_size, const RankBody& body,
                        const std::function<void(Ranks&)>& watch, const Variables& extra = {}) {
  static std::string test;  // the running test, and its calls so far
  static int calls = 0;
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = str(info->test_suite_name(), ".", info->name());
  calls = name == test ? calls + 1 : 0;
  test = name;
  if (internal::call_of_rank() >= 0) {
    if (internal::call_of_rank() == calls) internal::be_rank(body);
    return;
  }
  Ranks ranks(world_size, calls, extra);
  watch(ranks);
}

// Starts `world_size` ranks and expects that all end with 0 within `seconds`.
inline void run_ranks(int world_size, const RankBody& body, double seconds = 120) {
  start_ranks(world_size, body, [&](Ranks& ranks) {
    EXPECT_TRUE(ranks.wait_for_all(seconds)) << "not all ranks ended in " << seconds << " s";
    for (int rank = 0; rank < ranks.world_size(); ++rank) {
      EXPECT_TRUE(ranks.has_ended(rank) && !ranks.was_killed(rank) && ranks.exit_code(rank) == 0)
          << "rank " << rank << " of " << world_size << ":\n"
          << ranks.output(rank);
    }
  });
}

inline Ranks::Ranks(int world_size, int call, const Variables& extra) : ranks_(world_size) {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  for (int rank = 0; rank < world_size; ++rank) {
    ChildOptions options;
    options.command = {"/proc/self/exe",
                       str("--gtest_filter=", info->test_suite_name(), ".", info->name())};
    options.variables = rank_variables(variables_of_process(), rank, world_size, port_.number());
    options.variables["FLASHSTEP_TEST_CALL"] = std::to_string(call);
    options.variables["OMP_NUM_THREADS"] = std::string("1");
    options.variables.erase("GTEST_OUTPUT");  // else every rank overwrites the test's report
    for (const auto& [name, value] : extra) options.variables[name] = value;
    options.errors = Errors::kMerged;
    ranks_[rank].child = start_child(options);
  }
}

inline Ranks::~Ranks() {
  for (Rank& rank : ranks_) {
    if (!rank.ended) {
      kill(rank.child.pid, SIGKILL);
      while (waitpid(rank.child.pid, &rank.status, 0) < 0 && errno == EINTR) {
      }
    }
    ::close(rank.child.out);
  }
}

inline void Ranks::read_output(Rank& rank) {
  char bytes[4096];
  ssize_t count;
  while ((count = read(rank.child.out, bytes, sizeof bytes)) > 0) {
    rank.output.append(bytes, static_cast<size_t>(count));
  }
}

inline bool Ranks::wait_until(const std::function<bool()>& done, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    for (Rank& rank : ranks_) {
      if (!rank.ended && waitpid(rank.child.pid, &rank.status, WNOHANG) == rank.child.pid) {
        rank.ended = true;
      }
      read_output(rank);  // after the look at its end: what it printed last is here then
    }
    if (done()) return true;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > seconds) return false;
    poll(nullptr, 0, 5);  // ms
  }
}

inline bool Ranks::wait_for_output(int rank, const std::string& text, double seconds) {
  const auto printed = [&] { return ranks_[rank].output.find(text) != std::string::npos; };
  wait_until([&] { return printed() || ranks_[rank].ended; }, seconds);
  return printed();
}

inline bool Ranks::wait_for_end(int rank, double seconds) {
  return wait_until([&] { return ranks_[rank].ended; }, seconds);
}

inline bool Ranks::wait_for_all(double seconds, int excepted) {
  return wait_until(
      [&] {
        for (int rank = 0; rank < world_size(); ++rank) {
          if (rank != excepted && !ranks_[rank].ended) return false;
        }
        return true;
      },
      seconds);
}

inline std::string Ranks::all_output() const {
  std::string text;
  for (int rank = 0; rank < world_size(); ++rank) {
    text +=
        str("--- rank ", rank, " ", ranks_[rank].ended ? describe_end(ranks_[rank].status) : "runs",
            "\n", ranks_[rank].output);
  }
  return text;
}

}  // namespace flashstep::testing
