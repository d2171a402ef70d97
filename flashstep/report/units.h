// Bytes as reports write them.
#pragma once

namespace flashstep::report {

constexpr double kGiB = 1073741824.0, kMiB = 1048576.0, kGB = 1e9, kMB = 1e6;

}  // namespace flashstep::report
