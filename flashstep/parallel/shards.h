// Which rank owns what, when a part of the work is divided between ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace flashstep {

// Gives each item to the rank that has the least so far (the lowest of equals), the largest item
// first: at most 4/3 of the best possible largest load (Graham, "Bounds on multiprocessing timing
// anomalies", 1969). `loads` holds what each rank has already and is brought up to date. Returns
// the rank of each item; the same on every rank.
std::vector<int> assign_greedily(const std::vector<int64_t>& sizes, std::vector<int64_t>& loads);

// Largest load over mean load, minus 1: 0 when all carry the same.
double imbalance(const std::vector<int64_t>& loads);

}  // namespace flashstep
