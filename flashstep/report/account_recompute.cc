// Account of recomputation in the stack of blocks.
#include <algorithm>
#include <cmath>
#include <vector>

#include "flashstep/error.h"
#include "flashstep/report/account_case.h"
#include "flashstep/report/account_text.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {
namespace {

// Sizes worth showing: powers of two, the best one and its neighbours.
std::vector<int64_t> shown_group_sizes(int64_t blocks, int64_t best) {
  std::vector<int64_t> sizes = {best - 1, best, best + 1, blocks};
  for (int64_t size = 1; size < blocks; size *= 2) sizes.push_back(size);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::erase_if(sizes, [&](int64_t size) { return size < 1 || size > blocks; });
  return sizes;
}

}  // namespace

Account account_recompute(const RecomputeAccount& inputs) {
  const AccountCase c = account_case(inputs.step);
  require(inputs.saved_mib >= 0 && inputs.boundary_mib >= 0,
          "[account] expected sizes of 0 MiB or more, got ", inputs.saved_mib, " and ",
          inputs.boundary_mib);
  const BlockStack stack{.blocks = c.model.num_layers,
                         .boundary_bytes = inputs.boundary_mib > 0
                                               ? inputs.boundary_mib * kMiB
                                               : residual_stream_bytes(c.model, c.shape),
                         .saved_bytes = inputs.saved_mib > 0 ? inputs.saved_mib * kMiB
                                                             : block_saved_bytes(c.model, c.shape)};
  Account account{.name = "recompute", .table = {}, .derivation = {letters_of(c)}};
  account.table.title = str("Recomputation of activations: ", case_name(inputs.step, c));
  account.table.columns = {
      measure::text_column("scheme"),          measure::integer_column("inputs kept"),
      measure::integer_column("blocks kept"),  measure::number_column("peak", "GiB", 2),
      measure::integer_column("block passes"), measure::number_column("step", "x", 2)};
  const auto n = static_cast<double>(stack.blocks);
  const auto add = [&](const std::string& name, const RecomputeCost& cost) {
    account.table.add_row({name, static_cast<int64_t>(cost.boundaries),
                           static_cast<int64_t>(cost.saved_blocks), cost.peak_bytes / kGiB,
                           static_cast<int64_t>(cost.block_forwards),
                           (cost.block_forwards + 2 * n) / (3 * n)});
  };
  add("keep everything", keep_everything(stack));
  const int64_t best = best_group_size(stack);
  for (const int64_t size : shown_group_sizes(stack.blocks, best)) {
    add(str("groups of ", size, size == best ? " (best)" : ""), recompute_groups(stack, size));
  }
  const RecomputeCost halves = recompute_halves(stack);
  add("halves of halves", halves);
  // Optimal with as many inputs as halves keep, and with fewer: what the passes buy.
  const bool searched = stack.blocks <= kMostSearchedBlocks;
  const int64_t fewer = searched ? static_cast<int64_t>(halves.boundaries) - 1 : 0;
  for (int64_t kept = fewer; kept >= 1; kept /= 2) {
    add(str("fewest passes, ", kept + 1, " inputs"), recompute_with(stack, kept));
  }
  add("from the start each time", recompute_from_start(stack));
  const std::string a = number(stack.boundary_bytes / kMiB), r = number(stack.saved_bytes / kMiB);
  account.derivation.push_back(
      str("A = ", a, " MiB is a block's input, R = ", r,
          " MiB all that a block keeps, its input included; n = ", stack.blocks, " blocks."));
  account.derivation.push_back(
      str("groups of k: peak = (ceil(n / k) - 1) A + k R, smallest near k = sqrt(n A / R) = ",
          number(std::sqrt(n * stack.boundary_bytes / stack.saved_bytes)), ", so k = ", best,
          "; passes = 2 n"));
  account.derivation.push_back(
      str("halves of halves: peak = ceil(log2 n) A + R = O(log n), passes = n (1 + log2 n) = ",
          with_commas(static_cast<int64_t>(halves.block_forwards))));
  account.derivation.push_back(
      str("from the start each time: peak = A + R = O(1), passes = n (n + 1) / 2 = ",
          with_commas(stack.blocks * (stack.blocks + 1) / 2),
          " = O(n^2): the least memory, whatever it costs"));
  account.derivation.push_back(
      "step: passes forward and two for backward, over the three of a step that keeps everything");
  return account;
}

}  // namespace flashstep::report
