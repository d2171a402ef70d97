#include "flashstep/group.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>
#include <unistd.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "flashstep/comm/agreement.h"
#include "flashstep/comm/backends.h"
#include "flashstep/comm/first_line.h"
#include "flashstep/comm/gpus.h"
#include "flashstep/comm/group_internals.h"
#include "flashstep/comm/meet.h"
#include "flashstep/comm/outside_collectives.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using BackendType = c10d::ProcessGroup::BackendType;

// How often a rank that leaves looks whether the others do.
constexpr std::chrono::milliseconds kPartingLook(20);

c10::intrusive_ptr<c10d::Backend> connected_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const Environment& environment,
                                                 const Timeouts& timeouts) {
  const bool one_machine = environment.local_world_size == environment.world_size;
  const std::string address = own_address(environment.master_address, one_machine);
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
  auto gloo =
      make_gloo(prefixed, environment.rank, environment.world_size, address, timeouts.start);
  gloo->setTimeout(timeouts.collective);  // connecting had `start`
  return gloo;
}

uint64_t launched(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return backend ? backend->getSequenceNumberForGroup() : 0;
}

Watch::Launched launched_in(const std::vector<Links>& links, const OutsideCollectives* outside) {
  const uint64_t copies = outside != nullptr ? outside->launched() : 0;
  Watch::Launched all{copies, copies};
  for (const Links& l : links) {
    all.on_gpu += launched(l.nccl);
    all.all += launched(l.nccl) + launched(l.gloo);
  }
  return all;
}

// Ends what waits on this rank's GPU. It goes on then and writes anything into the others' memory,
// who may be behind: by then their hosts shall know that it is no result.
void end_on_gpus(const std::vector<Links>& links, OutsideCollectives& outside, Watch& watch) {
  if (std::ranges::any_of(links, [](const Links& l) { return l.nccl != nullptr; }))
    watch.wait_until_heard();
  outside.interrupt();  // streams that wait for other ranks, before NCCL waits for them
  for (const Links& l : links) {
    if (l.nccl) l.nccl->abort();
  }
}

// What ranks change in their process.
void prepare_process() {
  explain_gloo_terminations();
  // Gloo writes to connections that may be closed, which by default ends the process without a
  // word.
  struct sigaction pipe = {};
  if (sigaction(SIGPIPE, nullptr, &pipe) == 0 && pipe.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  // c10d tells of every lost connection with pages of addresses; the watch does, in a sentence.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

// Gloo's connections since `recorder`: neither what the store at `port` has accepted, nor what
// listens (Gloo ends the process when it cannot accept there any more).
std::vector<OpenSocket> opened_since(const SocketRecorder& recorder, int port) {
  std::vector<OpenSocket> sockets = recorder.opened();
  std::erase_if(sockets, [port](const OpenSocket& socket) {
    return socket.own_port == port || socket.peer_port == 0;
  });
  return sockets;
}

// Of the machine, since it was started; empty where the kernel does not say.
std::string running_kernel() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// Of NCCL a wait with a limit would end the work; it does not block without.
bool waits_on_host_alone(c10d::ProcessGroup& process_group) {
  const auto devices = process_group.getDeviceTypes();
  return std::all_of(devices.begin(), devices.end(), [&](const c10::Device& device) {
    return process_group.getBackend(device.type())->getBackendName() == "gloo";
  });
}

}  // namespace

Group::Group(const Environment& environment, GroupOptions options)
    : rank_(environment.rank),
      world_size_(environment.world_size),
      is_on_one_machine_(environment.local_world_size == environment.world_size),
      internals_(std::make_unique<Internals>()) {
  Internals& in = *internals_;
  in.options = std::move(options);
  in.environment = environment;
  in.exceptions_at_start = std::uncaught_exceptions();
  if (world_size_ == 1) {
    in.store = c10::make_intrusive<c10d::HashStore>();
    connect();
    return;
  }
  prepare_process();
  Meeting meeting = meet(environment, in.options.timeouts);
  in.store = meeting.store;
  in.connections = meeting.connection;
  in.names = meeting.names;
  Watch::Options watch;
  watch.rank = rank_;
  watch.world_size = world_size_;
  watch.timeouts = in.options.timeouts;
  watch.names = meeting.names;
  watch.store_name = meeting.store_name;
  watch.on_stuck = in.options.on_stuck;
  in.outside = std::make_shared<OutsideCollectives>();
  in.watch = std::make_shared<Watch>(meeting.watch_store, meeting.watch_connection, watch);
  try {
    connect();
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    fail(first_line(error));
    throw;
  }
}

void Group::connect() {
  Internals& in = *internals_;
  connect_gloo();
  // Of all ranks, whatever they use: else those with NCCL would talk past those without.
  const int index = in.options.device_index;
  const std::vector<std::string> gpus =
      all_gather(in.options.nccl ? own_gpu(in.environment, index) : "");
  if (!in.options.shared_gpus) check_gpus(gpus, in.names);
  if (in.options.nccl || index >= 0) {
    device_ = at::Device(at::kCUDA,
                         static_cast<at::DeviceIndex>(
                             index >= 0 ? index : gpu_of_rank(visible_gpus(), in.environment)));
  }
  // One rank's environment is not enough: it decides which collectives are launched.
  if (world_size_ > 1) {
    is_on_one_machine_ = all_reduce(is_on_one_machine_ ? 1 : 0, Reduce::kMin) == 1;
  }
  connect_nccl();
  guard();
}

void Group::connect_gloo() {
  Internals& in = *internals_;
  process_group_ = c10::make_intrusive<c10d::ProcessGroup>(in.store, rank_, world_size_);
  const SocketRecorder recorder;
  const int port = in.environment.master_port;
  (in.whole ? in.whole : this)->guard([recorder, port] {
    shut_down(opened_since(recorder, port));
  });
  guarded("connecting the ranks",
          [&] { in.gloo = connected_gloo(in.store, in.environment, in.options.timeouts); });
  const std::vector<OpenSocket> opened = opened_since(recorder, port);
  in.connections.insert(in.connections.end(), opened.begin(), opened.end());
  process_group_->setBackend(c10::DeviceType::CPU, BackendType::GLOO, in.gloo);
  process_group_->setDefaultBackend(BackendType::GLOO);
}

// Its connections come with the first collective.
void Group::connect_nccl() {
  Internals& in = *internals_;
  if (!in.options.nccl) {
    process_group_->setBackend(c10::DeviceType::CUDA, BackendType::GLOO, in.gloo);
    return;
  }
  const auto store = c10::make_intrusive<c10d::PrefixStore>("nccl", in.store);
  in.nccl = make_nccl(store, rank_, world_size_, in.options.timeouts.collective);
  process_group_->setBackend(c10::DeviceType::CUDA, BackendType::NCCL, in.nccl);
  process_group_->setDefaultBackend(BackendType::NCCL);
}

std::vector<Links> Group::Internals::all_links() const {
  std::vector<Links> links = {*this};
  for (const auto& [colors, part] : parts) links.push_back(*part->internals_);
  return links;
}

// Copies: the watch's threads shall not look into a group that is going away.
void Group::guard(const std::function<void()>& also_end) const {
  const Internals& in = *internals_;
  if (!in.watch) return;
  const std::vector<Links> links = in.all_links();
  in.watch->guard([links, outside = in.outside] { return launched_in(links, outside.get()); },
                  [links, outside = in.outside, watch = in.watch.get(), also_end] {
                    for (const Links& l : links) shut_down(l.connections);
                    if (also_end) also_end();
                    end_on_gpus(links, *outside, *watch);
                  });
}

Group::Group(const Group& whole, const Environment& own, const std::string& name)
    : rank_(own.rank),
      world_size_(own.world_size),
      device_(whole.device_),
      is_on_one_machine_(own.local_world_size == own.world_size),
      internals_(std::make_unique<Internals>()) {
  Internals& in = *internals_;
  in.whole = &whole;
  in.options = whole.internals_->options;
  in.environment = own;
  in.store = c10::make_intrusive<c10d::PrefixStore>(name, whole.internals_->store);
  in.outside = whole.internals_->outside;
  in.watch = whole.internals_->watch;
  connect_gloo();
  connect_nccl();
}

const Group& Group::split(int64_t color) const {
  Internals& in = *internals_;
  require((in.store || !in.parts.empty()) && !in.whole,
          "[comm] expected to split a group of all ranks, got ",
          in.whole ? "a part of one" : "a process group that was made elsewhere");
  const std::vector<int64_t> colors = all_gather(color);
  if (!in.store) {
    const auto found = in.parts.find(colors);
    require(found != in.parts.end(),
            "[comm] expected a part that was given for a process group that was made elsewhere");
    return *found->second;
  }
  // The first rank of each one's machine, as its environment says.
  const std::vector<int64_t> machines = all_gather(rank_ - in.environment.local_rank);
  if (const auto found = in.parts.find(colors); found != in.parts.end()) return *found->second;
  Environment own = in.environment;
  own.rank = own.world_size = own.local_world_size = 0;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (colors[rank] != color) continue;
    own.rank += rank < rank_ ? 1 : 0;
    own.local_world_size += machines[rank] == machines[rank_] ? 1 : 0;
    ++own.world_size;
  }
  const std::string name = str("split_", in.parts.size(), "_", color);
  std::unique_ptr<Group> part(new Group(*this, own, name));
  const Group& result = *in.parts.emplace(colors, std::move(part)).first->second;
  guard();
  // Nobody goes on, and perhaps fails, while others still wait for their connections to it.
  barrier("connecting the ranks");
  return result;
}

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
             std::chrono::milliseconds copies_limit)
    : rank_(process_group->getRank()),
      world_size_(process_group->getSize()),
      process_group_(std::move(process_group)),
      internals_(std::make_unique<Internals>()) {
  internals_->waits_in_turns = waits_on_host_alone(*process_group_);
  if (copies_limit.count() <= 0 || world_size_ == 1) return;
  internals_->outside = std::make_shared<OutsideCollectives>(copies_limit);
  const std::vector<std::string> kernels = all_gather(running_kernel());
  is_on_one_machine_ =
      !kernels[0].empty() && std::all_of(kernels.begin(), kernels.end(),
                                         [&](const auto& kernel) { return kernel == kernels[0]; });
}

void Group::take_part(const std::vector<int64_t>& colors, std::unique_ptr<Group> part) {
  require(!internals_->store, "[comm] expected to take a part for a group that was made elsewhere");
  internals_->parts[colors] = std::move(part);
}

Group::~Group() {
  Internals& in = *internals_;
  if (in.process != ::getpid()) {  // a fork: no thread is there that could end here
    static_cast<void>(process_group_.release());
    static_cast<void>(internals_.release());
    return;
  }
  if (in.watch && !in.whole) part_or_tell();
  in.parts.clear();
  const bool failed = in.watch && !in.watch->verdict().empty();
  if (failed) {
    in.watch->hurry();
    shut_down(in.connections);  // else Gloo waits for works that nobody will answer
    end_on_gpus({in}, *in.outside, *in.watch);
  } else if (in.nccl) {
    in.nccl->shutdown();
  }
  // Connections before the goodbye: a rank that still waits for this one learns that it is gone.
  in.nccl.reset();
  process_group_.reset();
  if (failed) leave_gloo();
  in.gloo.reset();
  in.watch.reset();
  if (in.outside && !in.whole) in.outside->stop();
}

// Gloo waits for its works, of which some may never end (wait_in_turns): then its threads stay,
// with what they use.
void Group::leave_gloo() {
  Internals& in = *internals_;
  std::promise<void> promise;
  const std::future<void> ended = promise.get_future();
  std::thread([gloo = std::move(in.gloo), promise = std::move(promise)]() mutable {
    gloo.reset();
    promise.set_value();
  }).detach();
  ended.wait_for(in.options.timeouts.grace / 4);
}

void Group::part_or_tell() {
  const Internals& in = *internals_;
  if (std::uncaught_exceptions() > in.exceptions_at_start)
    in.watch->tell(str("rank ", rank_, " ended with an error of its own"));
  const bool parted = !in.nccl || (in.watch->verdict().empty() && part_together());
  // Others, whose streams hold from now on, shall hear why.
  if (!parted && in.watch->verdict().empty())
    in.watch->tell(str("rank ", rank_, " left before the other ranks"));
  in.watch->unguard();
}

// NCCL frees communicators together, on each machine at least, and who comes first waits inside it
// for the others, whom nothing can interrupt there. So the ranks meet before; false when that is in
// vain, because a rank was lost or somebody still waits for a collective of this one.
bool Group::part_together() const {
  const Internals& in = *internals_;
  const auto deadline = std::chrono::steady_clock::now() + in.options.timeouts.collective;
  in.watch->part();
  try {
    int64_t parted = in.store->add("parted", 1);
    while (parted < world_size_ && in.watch->verdict().empty() &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPartingLook);
      parted = in.store->add("parted", 0);
    }
    return parted >= world_size_;
  } catch (const std::exception&) {
    return false;  // no store, no group
  }
}

c10::Stream Group::side_stream(at::Device device) const {
  if (internals_->whole) return internals_->whole->side_stream(device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const at::DeviceIndex index = device.has_index() ? device.index() : guard.getDevice().index();
  const std::lock_guard lock(internals_->mutex);
  const auto found = internals_->side_streams.find(index);
  if (found != internals_->side_streams.end()) return found->second;
  const c10::Stream made = guard.getStreamFromGlobalPool({device.type(), index}, /*high*/ true);
  internals_->side_streams.emplace(index, made);
  return made;
}

OutsideCollectives* Group::outside() const { return internals_->outside.get(); }

uint64_t Group::launched_on_gpu() const {
  return launched_in(internals_->all_links(), outside()).on_gpu;
}

void Group::fail(const std::string& sentence) const {
  if (internals_->whole) return internals_->whole->fail(sentence);
  if (internals_->watch) internals_->watch->tell(str("rank ", rank_, " failed: ", sentence));
}

void end_process(const std::string& sentence) {
  std::fprintf(stderr, "flashstep: %s\n", sentence.c_str());
  std::fflush(stderr);
  _exit(1);
}

}  // namespace flashstep
