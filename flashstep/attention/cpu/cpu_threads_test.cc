// Equal bits from any number of workers, and work for all of them where there is one head.
#include <atomic>
#include <barrier>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "flashstep/attention/cpu/test_problem.h"

namespace flashstep::attention_cpu {
namespace {

using testing::Case;
using testing::Element;

// Every worker a thread; free ones take the next task.
Parallel threads(int workers) {
  return {workers, [workers](int64_t tasks, const std::function<void(int64_t, int)>& body) {
            std::atomic<int64_t> next{0};
            std::vector<std::jthread> running;
            for (int worker = 0; worker < workers; ++worker) {
              running.emplace_back([&, worker] {
                for (int64_t task; (task = next++) < tasks;) body(task, worker);
              });
            }
          }};
}

void expect_equal_bits(const Case& c, Element type) {
  const testing::Inputs inputs(c, type);
  const auto one = testing::run(c, type, inputs, threads(1));
  for (const int workers : {2, 3, 5}) {
    const auto more = testing::run(c, type, inputs, threads(workers));
    const std::string what = str(workers, " workers ", testing::to_string(c));
    EXPECT_EQ(one.out.bytes(), more.out.bytes()) << what;
    EXPECT_EQ(one.grad_q.bytes(), more.grad_q.bytes()) << what;
    EXPECT_EQ(one.grad_k.bytes(), more.grad_k.bytes()) << what;
    EXPECT_EQ(one.grad_v.bytes(), more.grad_v.bytes()) << what;
    EXPECT_EQ(0, std::memcmp(one.logsumexp.data(), more.logsumexp.data(),
                             one.logsumexp.size() * sizeof(float)))
        << what;
  }
}

TEST(CpuAttentionThreads, AnyNumberGivesTheSameBits) {
  for (const auto type : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
    expect_equal_bits({.n = 300, .m = 410, .dim = 64}, type);
    expect_equal_bits({.n = 517, .m = 517, .dim = 32, .causal = true}, type);
    expect_equal_bits(
        {.n = 100, .m = 90, .dim = 24, .causal = true, .batches = 3, .heads = 8, .kv_heads = 4},
        type);
  }
}

// Runs the tasks on `workers` threads that wait for each other once each has a task, and counts
// the threads that got one.
class Counting {
 public:
  explicit Counting(int workers) : workers_(workers) {}

  Parallel parallel() {
    return {workers_, [this](int64_t tasks, const std::function<void(int64_t, int)>& body) {
              const int64_t busy = std::min<int64_t>(tasks, workers_);
              std::barrier all_have_one(busy);
              std::atomic<int64_t> next{0}, ran{0};
              std::vector<std::jthread> running;
              for (int worker = 0; worker < workers_; ++worker) {
                running.emplace_back([&, worker] {
                  bool first = true;
                  for (int64_t task; (task = next++) < tasks; first = false) {
                    if (first) {
                      ++ran;
                      all_have_one.arrive_and_wait();
                    }
                    body(task, worker);
                  }
                });
              }
              running.clear();
              threads.push_back(static_cast<int>(ran));
            }};
  }

  std::vector<int> threads;  // of each run

 private:
  int workers_;
};

TEST(CpuAttentionThreads, OneHeadKeepsEveryThreadBusyInBothDirections) {
  const Case c = {.n = 512, .m = 512, .dim = 64, .causal = true};
  const testing::Inputs inputs(c, Element::kFloat32);
  Counting counting(4);
  testing::run(c, Element::kFloat32, inputs, counting.parallel());
  // Forward: packing (two tiles of keys), attending. Backward: rows, chunks of keys, merging.
  EXPECT_EQ(counting.threads, (std::vector<int>{2, 4, 4, 4, 4}));
}

}  // namespace
}  // namespace flashstep::attention_cpu
