// Records a MemoryTrace of this process: every allocation of tensors' memory on the CPU or on GPUs,
// with the ranges (ranges.h) and operators in which it was made, its stack, and the shape of the
// first tensor that stood in it.
//
//   MemoryObserver observer(c10::DeviceType::CPU);
//   ... make a model, run it ...
//   observer.label(MemoryKind::kParameters, model->parameters());
//   const MemoryTrace trace = observer.take();
//
// On a CPU it stands in front of LibTorch's allocator: what kernels take from elsewhere (oneDNN's
// own buffers, the stack) is not seen. On GPUs it hears what the caching allocator hears.
#pragma once

#include <memory>

#include <torch/types.h>

#include "flashstep/measure/memory_trace.h"

namespace flashstep::measure {

class MemoryObserver {
 public:
  // From here on; takes the place of the listener to ranges. UserError while another one lives.
  explicit MemoryObserver(c10::DeviceType device);
  ~MemoryObserver();
  MemoryObserver(const MemoryObserver&) = delete;
  MemoryObserver& operator=(const MemoryObserver&) = delete;

  // What holds these tensors now is of this kind, from its allocation on. A label that is there
  // already stays. Undefined tensors, and those of memory that is not known, are passed over.
  void label(MemoryKind kind, at::ArrayRef<at::Tensor> tensors);

  // Stops, and gives back what was recorded: symbols resolved, kinds concluded.
  MemoryTrace take();

  class Recorder;

 private:
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace flashstep::measure
