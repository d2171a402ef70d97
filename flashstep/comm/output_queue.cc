#include "flashstep/comm/output_queue.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <poll.h>
#include <string_view>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "flashstep/error.h"

namespace flashstep {

struct OutputQueue::State {
  explicit State(int shared)
      : descriptor(fcntl(shared, F_DUPFD_CLOEXEC, 0)),
        news(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        is_terminal(isatty(shared) == 1) {
    if (news < 0) throw_errno(errno, "[launch] eventfd");
  }
  ~State() {
    if (descriptor >= 0) close(descriptor);
    if (news >= 0) close(news);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool is_full() const { return !is_dropped && bytes > size_t{1} << 20; }
  void tell() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(news, &one, sizeof one);
  }
  void write_all();
  void write_piece(std::string_view rest, std::unique_lock<std::mutex>& lock);

  const int descriptor, news;  // -1: one that was closed, which every write says
  const bool is_terminal;      // a closed one is none any more: known from the start
  std::mutex mutex;            // of all that follows
  std::condition_variable changed;
  std::deque<std::string> pieces;
  size_t bytes = 0;  // of the pieces, and of the one that is being written
  Clock::time_point moved;
  bool is_writing = false, is_dropped = false, is_closed = false;
  int error = 0;
};

void OutputQueue::State::write_piece(std::string_view rest, std::unique_lock<std::mutex>& lock) {
  while (!rest.empty() && !is_dropped) {
    lock.unlock();
    // So little that a slow reader is seen to read.
    ssize_t count = write(descriptor, rest.data(), std::min<size_t>(rest.size(), PIPE_BUF));
    const int failure = count < 0 ? errno : 0;
    if (failure == EAGAIN) {  // somebody made the terminal that we share non-blocking
      pollfd room = {descriptor, POLLOUT, 0};
      poll(&room, 1, -1);
    }
    lock.lock();
    if (failure == EINTR || failure == EAGAIN) continue;
    const bool nobody_reads = failure == EPIPE || (failure == EIO && is_terminal);
    if (error == 0 && !nobody_reads) error = failure;
    if (failure != 0) count = static_cast<ssize_t>(rest.size());  // later ones may find room
    const bool was_full = is_full();
    rest.remove_prefix(static_cast<size_t>(count));
    bytes -= static_cast<size_t>(count);
    moved = Clock::now();
    if (was_full && !is_full()) tell();
  }
}

// The thread's.
void OutputQueue::State::write_all() {
  // A closed pipe is an error like others: SIGPIPE comes to the thread that writes.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return is_closed || !pieces.empty(); });
    if (pieces.empty()) return;
    const std::string piece = std::move(pieces.front());
    pieces.pop_front();
    is_writing = true;
    write_piece(piece, lock);
    is_writing = false;
    if (pieces.empty()) tell();
  }
}

OutputQueue::OutputQueue(int descriptor)
    : state_(std::make_shared<State>(descriptor)),
      thread_([state = state_] { state->write_all(); }) {}

OutputQueue::~OutputQueue() {
  drop();
  bool is_writing;
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closed = true;
    is_writing = state_->is_writing;
  }
  state_->changed.notify_one();
  if (is_writing) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void OutputQueue::add(std::string bytes) {
  const std::lock_guard lock(state_->mutex);
  if (state_->is_dropped || bytes.empty()) return;
  if (state_->bytes == 0) state_->moved = Clock::now();
  state_->bytes += bytes.size();
  state_->pieces.push_back(std::move(bytes));
  state_->changed.notify_one();
}

bool OutputQueue::is_full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_full();
}

std::optional<OutputQueue::Clock::time_point> OutputQueue::waits_since() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->is_dropped || state_->bytes == 0) return std::nullopt;
  return state_->moved;
}

void OutputQueue::drop() {
  const std::lock_guard lock(state_->mutex);
  state_->is_dropped = true;
  state_->pieces.clear();
}

int OutputQueue::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

int OutputQueue::news() const { return state_->news; }

void OutputQueue::take_news() {
  uint64_t count;
  [[maybe_unused]] const ssize_t read_bytes = read(state_->news, &count, sizeof count);
}

}  // namespace flashstep
