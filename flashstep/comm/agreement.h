// Whether all ranks say the same.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/error.h"
#include "flashstep/group.h"

namespace flashstep {

// A mistake that every rank finds at the same place, and throws. None is told that another has
// failed: it would take that for the reason, and end with another exit code.
class AgreedError : public UserError {
 public:
  using UserError::UserError;
  explicit AgreedError(const UserError& error) : UserError(error) {}
};

struct Difference {
  int rank;                  // the first that differs from rank 0
  size_t line;               // the first in which it does
  std::string first, other;  // rank 0's line and its own; empty where one has no more
};

// All ranks call it with lines of text and get the same answer. What agrees costs a hash a rank.
std::optional<Difference> first_difference(const std::vector<std::string>& lines,
                                           const Group& group);

// The same; AgreedError where ranks differ, "`expected` on every rank, got ... on rank 0 and ...".
// `none` is what a rank has that has no more lines.
void require_agreement(const std::vector<std::string>& lines, const Group& group,
                       const std::string& expected, const std::string& none = "nothing");

// Returns when all ranks have called it: after work that only some do, and that takes what it takes
// (downloads, hashes of large files), longer than a collective may. A rank that is lost ends the
// wait; `group` null: nobody is waited for. `what` says what the others wait for.
void wait_for_all(const Group* group, const std::string& what);

// What rank 0 does for all, for as long as that takes; `group` null: this process does it. What it
// throws is thrown on all: a UserError as AgreedError, anything else, on the others, as a
// MachineError with `prefix` before its sentence. All ranks call it.
void on_first_rank(const Group* group, const std::string& prefix,
                   const std::function<void()>& work);

// After a capture into a CUDA graph that broke off on some ranks: those have launched fewer
// collectives than the others, and the watch would take them for ranks that are behind. From here
// on all count equally many. All ranks call it.
void even_launched(const Group& group);

}  // namespace flashstep
