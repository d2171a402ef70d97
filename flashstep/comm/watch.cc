#include "flashstep/comm/watch.h"

#include <algorithm>
#include <utility>

#include "flashstep/base/text.h"

namespace flashstep {
namespace {

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::chrono::duration<double> in_seconds(double value) {
  return std::chrono::duration<double>(value);
}

// Ten heartbeats in the time after which a rank is lost, but no more than one a second.
double interval_of(const Timeouts& timeouts) {
  return std::clamp(seconds(timeouts.silence) / 10, 0.02, 1.0);
}

// Three heartbeats missed, or a sixth of the usual patience: a rank that is only slow is back then.
Patience patience_of(const Timeouts& timeouts) {
  const double silence = seconds(timeouts.silence);
  return {silence, std::max(3 * interval_of(timeouts), silence / 6), seconds(timeouts.collective)};
}

// The looker's own pace, as a part of the interval; a longer gap means that it was stopped itself.
constexpr double kLooksPerInterval = 4, kOwnGap = 4;

}  // namespace

std::string beat_key(int rank) { return str("beat/", rank); }

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, std::vector<OpenSocket> connection,
             Options options)
    : store_(std::move(store)),
      connection_(std::move(connection)),
      options_(std::move(options)),
      interval_seconds_(interval_of(options_.timeouts)),
      patience_(patience_of(options_.timeouts)) {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank != options_.rank && (is_judge() || rank == 0)) {
      peers_.push_back({rank, options_.names[rank], Heartbeat(), 0, 0});
    }
  }
  talker_ = std::thread([this] { talk(); });
  looker_ = std::thread([this] { look(); });
}

Watch::~Watch() {
  unguard();
  leave();
  {
    const std::lock_guard lock(mutex_);
    stop_looking_ = true;
  }
  news_.notify_all();
  talker_.join();
  looker_.join();
}

void Watch::guard(std::function<Launched()> launched, std::function<void()> interrupt) {
  const std::lock_guard lock(mutex_);
  launched_ = std::move(launched);
  interrupt_ = std::move(interrupt);
}

void Watch::unguard() {
  std::thread interrupter;
  {
    const std::lock_guard lock(mutex_);
    count_launched();  // for the goodbye
    launched_ = nullptr;
    interrupt_ = nullptr;
    interrupter = std::move(interrupter_);
  }
  if (interrupter.joinable()) interrupter.join();
}

void Watch::count_launched() {
  if (!launched_) return;
  const Launched launched = launched_();
  own_.launched = launched.all;
  own_.on_gpu = launched.on_gpu;
}

Verdict Watch::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

Verdict Watch::await_verdict() {
  std::unique_lock lock(mutex_);
  if (own_.state == State::kRunning) own_.state = State::kBroken;
  urgent_ = true;
  news_.notify_all();
  // Longer than the judge needs for any of its findings, and the way of its word.
  const double patience =
      std::max(patience_.silence_seconds, 2 * patience_.suspicion_seconds) + 4 * interval_seconds_;
  news_.wait_for(lock, in_seconds(patience), [this] { return !verdict_.empty(); });
  return verdict_;
}

void Watch::noticed() {
  const std::lock_guard lock(mutex_);
  stuck_at_.reset();
}

void Watch::hurry() {
  const std::lock_guard lock(mutex_);
  stuck_at_ = Clock::now() + options_.timeouts.grace;
}

// Others ask the store every interval.
void Watch::wait_until_heard() {
  std::unique_lock lock(mutex_);
  const auto interval = std::chrono::duration_cast<Clock::duration>(in_seconds(interval_seconds_));
  constexpr std::chrono::milliseconds kAnswer(100);  // of the store
  const auto latest = verdict_at_ + 2 * interval + kAnswer;
  news_.wait_until(lock, latest, [this] { return published_ || talk_ended_; });
  const auto heard =
      std::min(latest, (published_ ? published_at_ : verdict_at_) + interval + kAnswer);
  lock.unlock();
  std::this_thread::sleep_until(heard);
}

void Watch::tell(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  set_verdict({sentence, options_.rank});
  stuck_at_.reset();  // whoever tells is ending
}

void Watch::set_verdict(const Verdict& verdict) {
  if (!verdict_.empty()) return;
  verdict_ = verdict;
  verdict_at_ = Clock::now();
  left_at_ = Clock::now();  // who is leaving stays a little longer, for this to be heard
  if (!leaving_) stuck_at_ = Clock::now() + options_.timeouts.grace;
  urgent_ = true;
  news_.notify_all();
}

void Watch::part() {
  const std::lock_guard lock(mutex_);
  count_launched();
  own_.state = State::kParting;
  urgent_ = true;
  news_.notify_all();
}

void Watch::leave() {
  std::unique_lock lock(mutex_);
  if (!leaving_) {
    leaving_ = true;
    left_at_ = Clock::now();
    own_.state = State::kLeft;
    urgent_ = true;
    news_.notify_all();
  }
  stuck_at_.reset();
  const auto is_late = [this] {
    const double talk_seconds =
        verdict_.empty() ? patience_.silence_seconds : 2 * interval_seconds_ + 0.5;
    return Clock::now() > left_at_ + in_seconds(stay_seconds() + talk_seconds);
  };
  while (!talk_ended_ && !is_late()) news_.wait_for(lock, in_seconds(interval_seconds_));
  if (!talk_ended_) shut_down(connection_);  // it hangs in a store that does not answer
  news_.wait(lock, [this] { return talk_ended_; });
}

// How long this rank stays for the others' sake. With a verdict they only have to hear it; without,
// they may work for as long as a collective may take, and need rank 0's store and judgement.
double Watch::stay_seconds() const {
  if (!is_judge()) return 0;
  return verdict_.empty() ? seconds(options_.timeouts.collective)
                          : 2 * patience_.suspicion_seconds + 1;
}

bool Watch::others_are_off() const {
  const double patience =
      verdict_.empty() ? patience_.silence_seconds : patience_.suspicion_seconds;
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.beat.state == State::kLeft || peer.beat.state == State::kTold ||
           peer.silent_seconds > patience;
  });
}

// One round of talk; false when it was the last one.
bool Watch::exchange() {
  std::unique_lock lock(mutex_);
  urgent_ = false;
  ++own_.count;
  count_launched();
  Heartbeat beat = own_;
  if (!verdict_.empty()) beat.state = State::kTold;
  const std::string own_verdict = published_ || verdict_.empty() ? "" : encode(verdict_);
  std::vector<std::string> keys = {kVerdictKey};
  for (const Peer& peer : peers_) keys.push_back(beat_key(peer.rank));
  lock.unlock();

  std::string agreed;
  if (!own_verdict.empty()) agreed = store_->compareSet(kVerdictKey, kNoVerdict, own_verdict);
  store_->set(beat_key(options_.rank), encode(beat));
  const auto values = store_->multiGet(keys);

  lock.lock();
  store_silent_seconds_ = 0;
  agreed.assign(values[0].begin(), values[0].end());
  if (agreed != kNoVerdict) {
    set_verdict(decode_verdict(agreed));
    if (!published_) {
      published_ = true;
      published_at_ = Clock::now();
      news_.notify_all();
    }
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    const auto beat_there = decode({values[i + 1].begin(), values[i + 1].end()});
    if (beat_there && beat_there->count != peers_[i].beat.count) {
      if (beat_there->on_gpu != peers_[i].beat.on_gpu) peers_[i].idle_seconds = 0;
      peers_[i].beat = *beat_there;
      peers_[i].silent_seconds = 0;
    }
  }
  const bool said = leaving_ && (beat.state == State::kTold || beat.state == State::kLeft);
  if (said &&
      (!is_judge() || others_are_off() || Clock::now() > left_at_ + in_seconds(stay_seconds())))
    return false;
  news_.wait_for(lock, in_seconds(interval_seconds_), [this] { return urgent_; });
  return true;
}

void Watch::talk() {
  try {
    while (exchange()) {
    }
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    store_gone_ = true;
  }
  const std::lock_guard lock(mutex_);
  talk_ended_ = true;
  news_.notify_all();
}

void Watch::grow_silence(double elapsed) {
  store_silent_seconds_ += elapsed;
  for (Peer& peer : peers_) {
    peer.silent_seconds += elapsed;
    peer.idle_seconds += elapsed;
  }
  const uint64_t before = own_.on_gpu;
  count_launched();
  own_idle_seconds_ = own_.on_gpu != before ? 0 : own_idle_seconds_ + elapsed;
  const bool broken = own_.state == State::kBroken ||
                      std::any_of(peers_.begin(), peers_.end(),
                                  [](const Peer& p) { return p.beat.state == State::kBroken; });
  broken_seconds_ = broken ? broken_seconds_ + elapsed : 0;
}

void Watch::judge_all() {
  // Rank 0 goes on judging while it stays for the others' sake.
  if (!verdict_.empty() || (leaving_ && !is_judge())) return;
  const double patience =
      broken_seconds_ > 0 ? patience_.suspicion_seconds : patience_.silence_seconds;
  if (store_gone_) {
    set_verdict({options_.store_name + " is gone", 0});
  } else if (store_silent_seconds_ > patience) {
    set_verdict(
        {str(options_.store_name, " has not answered for ", fixed(store_silent_seconds_, 1), " s"),
         0});
  } else if (store_silent_seconds_ <= patience_.suspicion_seconds) {
    // Nobody is heard through a store that does not answer.
    std::vector<Peer> everybody = peers_;
    everybody.push_back({options_.rank, options_.names[options_.rank], own_, 0, own_idle_seconds_});
    // Only the judge sees all, and thus who is behind.
    const double broken = is_judge() ? broken_seconds_ : 0;
    if (const auto verdict = judge(everybody, broken, patience_)) set_verdict(*verdict);
  }
}

// What follows from a verdict.
void Watch::act(std::unique_lock<std::mutex>& lock) {
  if (verdict_.empty()) return;
  if (interrupt_ && !interrupted_) {
    interrupted_ = true;
    interrupter_ = std::thread(interrupt_);
  }
  if (stuck_at_ && Clock::now() > *stuck_at_) {
    stuck_at_.reset();
    const std::string sentence = verdict_.sentence;
    lock.unlock();
    if (options_.on_stuck) options_.on_stuck(sentence);
    lock.lock();
  }
}

void Watch::look() {
  const double pause = interval_seconds_ / kLooksPerInterval;
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!stop_looking_) {
    news_.wait_for(lock, in_seconds(pause));
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - last).count();
    last = now;
    grow_silence(std::min(elapsed, kOwnGap * pause));
    judge_all();
    act(lock);
  }
}

}  // namespace flashstep
