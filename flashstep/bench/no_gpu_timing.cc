#include "flashstep/bench/gpu_timing.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

[[noreturn]] void refuse() { throw MachineError("[gpu] this build has no CUDA"); }

}  // namespace

std::vector<double> gpu_seconds(const NumberedCall&, int64_t, int64_t, int64_t) { refuse(); }

GpuGraph::GpuGraph(const NumberedCall&, int64_t calls) : work_([] {}), calls_(calls) {}
std::vector<double> GpuGraph::seconds(int64_t) { refuse(); }

uint64_t gpu_l2_bytes() { refuse(); }

}  // namespace flashstep::tools
