// Equal bits from any number of workers, and work for all of them where there is one head.
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "flashstep/attention/cpu/test_problem.h"
#include "flashstep/attention/implementations.h"

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

// Counts the threads that PyTorch's pool brings to every run of tasks. The first task of a thread
// waits for the other threads, so that none takes all before these have woken.
class Counting {
 public:
  Parallel around(Parallel pool) {
    return {pool.workers,
            [this, pool](int64_t tasks, const std::function<void(int64_t, int)>& body) {
              const size_t expected = std::min<int64_t>(tasks, pool.workers);
              std::mutex mutex;
              std::condition_variable changed;
              std::set<std::thread::id> here;
              bool waits = true;
              pool.run(tasks, [&](int64_t task, int worker) {
                std::unique_lock lock(mutex);
                here.insert(std::this_thread::get_id());
                changed.notify_all();
                // Who does not come is missing in the count.
                waits = waits && changed.wait_for(lock, std::chrono::seconds(20),
                                                  [&] { return here.size() >= expected; });
                lock.unlock();
                body(task, worker);
              });
              threads.push_back(static_cast<int>(here.size()));
            }};
  }

  std::vector<int> threads;  // of each run
};

TEST(CpuAttentionThreads, OneHeadKeepsEveryThreadOfPytorchBusyInBothDirections) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  const Case c = {.n = 512, .m = 512, .dim = 64, .causal = true};
  const testing::Inputs inputs(c, Element::kFloat32);
  Counting counting;
  testing::run(c, Element::kFloat32, inputs, counting.around(internal::torch_threads()));
  at::set_num_threads(before);
  // Forward: packing (two tiles of keys), attending. Backward: rows, chunks of keys, merging.
  EXPECT_EQ(counting.threads, (std::vector<int>{2, 4, 4, 4, 4}));
}

TEST(CpuAttentionThreads, InsideOfAParallelRegionThereIsOne) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  std::array<int, 4> workers = {};
  at::parallel_for(0, 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) workers[i] = internal::torch_threads().workers;
  });
  at::set_num_threads(before);
  EXPECT_EQ(workers, (std::array<int, 4>{1, 1, 1, 1}));
}

}  // namespace
}  // namespace flashstep::attention_cpu
