#include "flashstep/base/called_back.h"

#include <atomic>

namespace flashstep {
namespace {

std::atomic<Rethrow> rethrow_of_process = nullptr;
std::atomic<WantsToStop> wants_to_stop_of_process = nullptr;

}  // namespace

void set_rethrow(Rethrow rethrow) { rethrow_of_process = rethrow; }

void rethrow_to_caller() {
  if (const Rethrow rethrow = rethrow_of_process) rethrow();
}

void set_wants_to_stop(WantsToStop wants_to_stop) { wants_to_stop_of_process = wants_to_stop; }
WantsToStop wants_to_stop() { return wants_to_stop_of_process; }

}  // namespace flashstep
