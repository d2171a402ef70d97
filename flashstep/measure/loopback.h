// What ranks of one machine without GPUs talk over.
#pragma once

#include <vector>

namespace flashstep::measure {

// Bytes a second of one TCP stream over this machine's loopback, one way: of `windows` stretches of
// `seconds` each, after one that is not counted. MachineError if there is no loopback.
std::vector<double> measure_loopback(int windows, double seconds);

}  // namespace flashstep::measure
