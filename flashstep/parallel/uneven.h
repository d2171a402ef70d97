// Ranks whose batches differ in size, or of which some have none left while others go on.
//
//   while (true) {
//     const Batch batch = next();                                      // may be empty
//     const auto share = share_of_batch(batch.rows, group);
//     if (share.rows == 0) break;                                      // on all ranks at once
//     if (batch.rows > 0) (loss(net, batch) * share.weight).backward();
//     else give_zero_gradients(net.reducer());
//     net.finish_gradient_synchronization();
//     optimizer.step();
//   }
//
// Between backward, or give_zero_gradients(), and finish_gradient_synchronization() no rank calls
// another collective: those with rows have sent their gradients by then, those without have not.
#pragma once

#include <cstdint>

#include "flashstep/data_parallel.h"
#include "flashstep/group.h"

namespace flashstep {

struct BatchShare {
  int64_t rows = 0;   // of all ranks together
  double weight = 0;  // for the mean loss of this rank's rows: own rows times W over all rows
};

// With the loss so weighted, the mean over the ranks is the mean over all rows. All ranks call it
// before each step, with the rows of the whole step: where gradients are accumulated, of all its
// micro-batches together, each of whose mean losses counts by its share of them. Costs one small
// message.
BatchShare share_of_batch(int64_t own_rows, const Group& group);

// On a rank without rows, instead of the step's last backward: parameters without gradient get one
// of zeros, what earlier micro-batches have added up stays. With allow_unused it does nothing, for
// a gradient that is missing counts as zero already (and one that is missing on all ranks leaves
// its parameter alone). Not for strategy torch, which sends from within backward: UserError.
void give_zero_gradients(GradientReducer& reducer);

}  // namespace flashstep
