#include "flashstep/comm/watch.h"

#include <atomic>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace flashstep {
namespace {

using std::chrono::milliseconds;

// Once stopped, it keeps whoever asks, as a store does whose process does not run.
class StoppableStore : public c10d::HashStore {
 public:
  using c10d::Store::set;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    ++asked_;
    while (stopped_) std::this_thread::sleep_for(milliseconds(1));
    return HashStore::multiGet(keys);
  }
  void wait_until_asked(int times) const {
    while (asked_ < times) std::this_thread::sleep_for(milliseconds(1));
  }
  void stop() { stopped_ = true; }
  void resume() { stopped_ = false; }

 private:
  std::atomic<int> asked_ = 0;
  std::atomic<bool> stopped_ = false;
};

// Rank 1 of two, to which rank 0's heartbeat never grows.
Watch::Options impatient() {
  Watch::Options options;
  options.rank = 1;
  options.world_size = 2;
  options.timeouts.silence = milliseconds(1000);
  options.names = {"rank 0", "rank 1"};
  options.store_name = "rank 0, which holds the store,";
  return options;
}

c10::intrusive_ptr<StoppableStore> store_of_two() {
  auto store = c10::make_intrusive<StoppableStore>();
  store->set(kVerdictKey, std::string(kNoVerdict));
  store->set(beat_key(0), encode(Heartbeat{1}));
  return store;
}

std::string verdict_of(const Watch& watch) {
  while (watch.verdict().empty()) std::this_thread::sleep_for(milliseconds(5));
  return watch.verdict().sentence;
}

TEST(Watch, ASilentRankIsNamed) {
  const Watch watch(store_of_two(), {}, impatient());
  EXPECT_EQ(verdict_of(watch).find("rank 0 has not been heard for 1."), 0);
}

// Its last heartbeat is older than the store's last answer.
TEST(Watch, AStoreThatDoesNotAnswerIsNamedBeforeWhoIsNotHeardThroughIt) {
  const auto store = store_of_two();
  const Watch watch(store, {}, impatient());
  store->wait_until_asked(3);
  store->stop();
  EXPECT_EQ(verdict_of(watch).find("rank 0, which holds the store, has not answered for 1."), 0);
  store->resume();
}

}  // namespace
}  // namespace flashstep
