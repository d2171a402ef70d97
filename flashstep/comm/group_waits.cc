// How a rank waits for the others, and what it says when one of them is gone.
#include <chrono>
#include <csignal>

#include <c10/util/Exception.h>

#include "flashstep/base/called_back.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/backends.h"
#include "flashstep/comm/first_line.h"
#include "flashstep/comm/group_internals.h"
#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep {
namespace {

// Waits in turns, between which the process's caller is asked whether it wants to stop, and the
// watch whether a rank was lost.
constexpr std::chrono::milliseconds kTurn(100);

// Of point-to-point messages a wait with a limit gives the message up.
bool can_wait_in_turns(const c10d::Work& work) {
  const c10d::OpType type = work.retrieveOpType();
  return type != c10d::OpType::SEND && type != c10d::OpType::RECV &&
         type != c10d::OpType::RECVANYSOURCE && type != c10d::OpType::UNKNOWN;
}

}  // namespace

void Group::explain(const std::string& what) const {
  if (internals_->whole) internals_->whole->explain(what);
  std::string reason;
  try {
    throw;
  } catch (const MachineError&) {
    throw;
  } catch (const std::exception& error) {
    const bool doomed = internals_->watch && !internals_->watch->verdict().empty();
    const bool of_torch = dynamic_cast<const c10::Error*>(&error) != nullptr;
    if (!is_network_error(error) && !(doomed && of_torch)) throw;
    reason = first_line(error);
  }
  Watch* const watch = internals_->watch.get();
  const Verdict verdict = watch ? watch->await_verdict() : Verdict();
  if (!verdict.empty()) {
    watch->noticed();
    throw LostRank(str("[", what, "] ", verdict.sentence), verdict.rank);
  }
  if (watch) watch->tell(str("rank ", rank_, " failed in ", what, ": ", reason));
  throw MachineError(str("[", what, "] rank ", rank_, " of ", world_size_,
                         watch ? ", while every rank is alive: " : ": ", reason));
}

void Group::check(const std::string& what) const {
  const Internals& in = *internals_;
  const Verdict verdict = in.watch ? in.watch->verdict() : Verdict();
  if (!verdict.empty()) {
    in.watch->noticed();
    throw LostRank(str("[", what, "] ", verdict.sentence), verdict.rank);
  }
  if (in.nccl && in.nccl->getError() != c10d::ErrorType::SUCCESS) {
    guarded(what, [] { C10_THROW_ERROR(DistBackendError, "NCCL reports an error"); });
  }
}

void Group::wait(const c10::intrusive_ptr<c10d::Work>& work, const std::string& what) const {
  check(what);
  const bool in_turns =
      (internals_->waits_in_turns || is_gloo_collective(*work)) && can_wait_in_turns(*work);
  guarded(what, [&] {
    if (!(in_turns ? wait_in_turns(*work, what) : work->wait()))
      C10_THROW_ERROR(DistBackendError, "the collective was aborted");
  });
}

bool Group::wait_in_turns(c10d::Work& work, const std::string& what) const {
  Internals& in = *internals_;
  const WantsToStop asked = wants_to_stop();
  std::chrono::milliseconds doomed(0);
  for (;;) {
    try {
      return work.wait(kTurn);
    } catch (const std::exception&) {
      if (work.isCompleted()) return work.wait();  // with its own error, if it has one
    }
    if (asked && asked())
      throw Interrupted(SIGINT, str("[", what, "] interrupted while it waited for other ranks"));
    if (!in.watch || in.watch->verdict().empty()) continue;
    // A message that Gloo is about to send while its connection is shut down may get lost: nobody
    // ends Gloo's wait for it (waitSend) then.
    doomed += kTurn;
    if (2 * doomed < in.options.timeouts.grace) continue;
    C10_THROW_ERROR(DistBackendError, "Gloo waits for a message that it lost");
  }
}

}  // namespace flashstep
