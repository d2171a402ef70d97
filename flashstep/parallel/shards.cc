#include "flashstep/parallel/shards.h"

#include <algorithm>
#include <numeric>

namespace flashstep {

std::vector<int> assign_greedily(const std::vector<int64_t>& sizes, std::vector<int64_t>& loads) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int> ranks(sizes.size());
  for (const size_t item : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    ranks[item] = static_cast<int>(least - loads.begin());
    *least += sizes[item];
  }
  return ranks;
}

double imbalance(const std::vector<int64_t>& loads) {
  const int64_t sum = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  if (sum == 0) return 0;
  const double mean = static_cast<double>(sum) / static_cast<double>(loads.size());
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) / mean - 1;
}

}  // namespace flashstep
