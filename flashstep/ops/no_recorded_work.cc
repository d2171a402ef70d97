#include "flashstep/error.h"
#include "flashstep/ops/recorded_work.h"

namespace flashstep {
namespace {

[[noreturn]] void refuse() { throw MachineError("[gpu] this build has no CUDA"); }

}  // namespace

struct GpuStream::State {};
GpuStream::GpuStream(std::optional<at::Device>) { refuse(); }
GpuStream::~GpuStream() = default;

struct RecordedWork::State {};
RecordedWork::RecordedWork(const std::function<void()>&, const RecordedWork*) { refuse(); }
RecordedWork::~RecordedWork() = default;
void RecordedWork::replay() { refuse(); }

}  // namespace flashstep
