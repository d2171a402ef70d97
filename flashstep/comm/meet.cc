#include "flashstep/comm/meet.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "flashstep/comm/first_line.h"
#include "flashstep/comm/verdict.h"
#include "flashstep/comm/watch.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// How often a rank that waits for the others looks whether somebody gave up.
constexpr std::chrono::milliseconds kLook(1000);

std::string place(const Environment& environment) {
  return str(environment.master_address, ":", environment.master_port);
}

bool holds_store(const Environment& environment) {
  return environment.rank == 0 && !environment.agent_store;
}

// Of `timeout`, what is left once somebody listens on this machine's `port`: c10d looks for a store
// that is not there yet after half a second again.
std::chrono::milliseconds wait_for_listener(int port, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  while (!somebody_listens_on(port) && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const Environment& environment,
                                              const Timeouts& timeouts) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = holds_store(environment);
  options.waitWorkers = false;  // we wait ourselves, and say for whom
  options.timeout = timeouts.start;
  if (!options.isServer && environment.master_address == "127.0.0.1")
    options.timeout = wait_for_listener(environment.master_port, timeouts.start);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
    store->setTimeout(timeouts.start);
    return store;
  } catch (const std::exception& error) {
    const std::string reason = first_line(error);
    if (options.isServer) {
      throw MachineError(str("[comm] rank 0 cannot hold the store at ", place(environment),
                             " (another MASTER_PORT may be free): ", reason));
    }
    throw MachineError(
        str("[comm] rank ", environment.rank, " found no store at ", place(environment), ", where ",
            environment.agent_store ? "torchrun's agent" : "rank 0", " should hold it: ", reason));
  }
}

// The client's ends of what `open` opens, without what the store accepts meanwhile.
template <typename Open>
std::vector<OpenSocket> connections_of(int store_port, const Open& open) {
  const SocketRecorder recorder;
  open();
  std::vector<OpenSocket> connections = recorder.opened();
  std::erase_if(connections,
                [&](const OpenSocket& socket) { return socket.peer_port != store_port; });
  return connections;
}

// The store of a job as this process knows it.
struct JobStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
  std::vector<OpenSocket> connection;
  int groups = 0;  // made so far, in the same order on every rank
};

// Stays until the process ends: the groups of a job, one after the other or side by side, share its
// port, and a rank that makes its next group must not find the last one's store, about to close.
JobStore& job_store(const Environment& environment, const Timeouts& timeouts) {
  static std::mutex mutex;
  static auto& stores = *new std::map<std::string, JobStore>();
  const std::lock_guard lock(mutex);
  JobStore& job = stores[str(environment.rank, " ", place(environment), " ", environment.job)];
  if (!job.store) {
    job.connection = connections_of(environment.master_port,
                                    [&] { job.store = open_store(environment, timeouts); });
  }
  ++job.groups;
  return job;
}

std::string name_key(int rank) { return str("name/", rank); }

std::string own_name(int rank) {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  return str("rank ", rank, " (process ", getpid(), " on ", host, ")");
}

// The first sentence counts, whether or not rank 0 has written kNoVerdict.
void tell_others(c10d::Store& store, const std::string& sentence) {
  store.compareSet(kVerdictKey, "", sentence);
  store.compareSet(kVerdictKey, kNoVerdict, sentence);
}

// Gives the sentence to the others, who look for it while they wait, and throws it.
[[noreturn]] void give_up(c10d::Store& store, const Environment& environment,
                          const std::string& sentence) {
  tell_others(store, sentence);
  if (holds_store(environment)) std::this_thread::sleep_for(2 * kLook);  // for them to read it
  throw MachineError("[comm] " + sentence);
}

// Until all ranks have written their names, or somebody gives up.
void wait_for_names(c10d::Store& store, const Environment& environment, const Timeouts& timeouts) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < environment.world_size; ++rank) keys.push_back(name_key(rank));
  const auto deadline = std::chrono::steady_clock::now() + timeouts.start;
  while (true) {
    try {
      return store.wait(keys, std::min<std::chrono::milliseconds>(kLook, timeouts.start));
    } catch (const c10::DistStoreError&) {  // not yet
    }
    const std::string verdict = store.check({kVerdictKey}) ? store.get_to_str(kVerdictKey) : "";
    if (!verdict.empty() && verdict != kNoVerdict) give_up(store, environment, verdict);
    if (std::chrono::steady_clock::now() < deadline) continue;
    std::vector<std::string> missing;
    for (int rank = 0; rank < environment.world_size; ++rank) {
      if (!store.check({keys[rank]})) missing.push_back(std::to_string(rank));
    }
    if (missing.empty()) return;
    give_up(
        store, environment,
        str("waited ", fixed(std::chrono::duration<double>(timeouts.start).count(), 1), " s for ",
            environment.world_size, " ranks to start; not there: rank ", join(missing, ", ")));
  }
}

// Writes who this rank is; waits for the others.
std::vector<std::string> exchange_names(c10d::Store& store, const Environment& environment,
                                        const Timeouts& timeouts) {
  const int rank = environment.rank;
  if (store.add(str("taken/", rank), 1) != 1) {
    const std::string sentence = str("two processes say that they are rank ", rank, " of ",
                                     environment.world_size, " at ", place(environment));
    tell_others(store, sentence);
    throw UserError("[comm] " + sentence);
  }
  if (rank == 0) store.compareSet(kVerdictKey, "", kNoVerdict);
  store.set(beat_key(rank), encode(Heartbeat()));
  store.set(name_key(rank), own_name(rank));
  wait_for_names(store, environment, timeouts);
  std::vector<std::string> names;
  for (int other = 0; other < environment.world_size; ++other) {
    names.push_back(store.get_to_str(name_key(other)));
  }
  return names;
}

}  // namespace

Meeting meet(const Environment& environment, const Timeouts& timeouts) {
  Meeting meeting;
  const JobStore& job = job_store(environment, timeouts);
  const std::string prefix = str("flashstep/", environment.job, "/group_", job.groups);
  meeting.store = c10::make_intrusive<c10d::PrefixStore>(prefix, job.store);
  meeting.connection = job.connection;
  c10::intrusive_ptr<c10d::Store> watch_store;
  meeting.watch_connection =
      connections_of(environment.master_port, [&] { watch_store = job.store->clone(); });
  meeting.watch_store = c10::make_intrusive<c10d::PrefixStore>(prefix, watch_store);

  try {
    meeting.names = exchange_names(*meeting.store, environment, timeouts);
  } catch (const c10::Error& error) {
    throw MachineError(str("[comm] rank ", environment.rank,
                           " lost the store while the ranks were starting: ", first_line(error)));
  }
  meeting.store_name = environment.agent_store ? str("torchrun's agent at ", place(environment),
                                                     ", which holds the store,")
                                               : meeting.names[0] + ", which holds the store,";
  return meeting;
}

}  // namespace flashstep
