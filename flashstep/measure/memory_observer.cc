#include "flashstep/measure/memory_observer.h"

#include <mutex>
#include <string_view>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>

#include "flashstep/error.h"
#include "flashstep/measure/cpu_memory.h"
#include "flashstep/measure/gpu_memory.h"
#include "flashstep/measure/memory_recorder.h"
#include "flashstep/profiling.h"

namespace flashstep::measure {
namespace {

// One recorder at a time. The lock is held while it writes, on whatever thread.
std::mutex recorder_mutex;
MemoryRecorder* current_recorder = nullptr;

template <typename Write>
void record(const Write& write) {
  const std::lock_guard lock(recorder_mutex);
  if (current_recorder != nullptr) write(*current_recorder);
}

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }

// ---- Where memory comes from

class CpuListener final : public CpuMemoryListener {
 public:
  void cpu_allocated(const void* address, int64_t bytes) override {
    const Stack stack = current_stack();
    record([&](MemoryRecorder& recorder) { recorder.allocated(number(address), bytes, stack); });
  }
  void cpu_freed(const void* address) override {
    record([&](MemoryRecorder& recorder) { recorder.freed(number(address)); });
  }
};

class GpuListener final : public GpuMemoryListener {
 public:
  void gpu_allocated(int, uint64_t address, int64_t bytes) override {
    const Stack stack = current_stack();
    record([&](MemoryRecorder& recorder) { recorder.allocated(address, bytes, stack); });
  }
  void gpu_freed(int, uint64_t address) override {
    record([&](MemoryRecorder& recorder) { recorder.freed(address); });
  }
};

// ---- Operators and ranges

// "torch::autograd::CppNode<flashstep::(anonymous namespace)::FusedRope>" -> "flashstep::FusedRope"
std::string short_name(std::string_view name) {
  constexpr std::string_view kNode = "torch::autograd::CppNode<", kFile = "(anonymous namespace)::";
  if (name.starts_with(kNode) && name.ends_with('>')) {
    name = name.substr(kNode.size(), name.size() - kNode.size() - 1);
  }
  std::string text(name);
  for (size_t at; (at = text.find(kFile)) != std::string::npos;) text.erase(at, kFile.size());
  return text;
}

std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction& function) {
  const bool is_node = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  record([&](MemoryRecorder& recorder) {
    recorder.begin_operator(short_name(function.name()), is_node ? function.seqNr() : -1);
  });
  return nullptr;
}

std::string shape_of(const at::Tensor& tensor) {
  std::string sizes;
  for (const int64_t size : tensor.sizes()) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  return str(c10::getDtypeNames(tensor.scalar_type()).first, " (", sizes, ")");
}

void tell_shape(MemoryRecorder& recorder, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const void* address = tensor.storage().data();
  // A view of a part says little of the whole.
  if (address != nullptr && tensor.nbytes() == tensor.storage().nbytes())
    recorder.shape(number(address), shape_of(tensor));
}

void operator_ends(const at::RecordFunction& function, at::ObserverContext*) {
  record([&](MemoryRecorder& recorder) {
    recorder.end_operator();
    for (const c10::IValue& output : function.outputs()) {
      if (output.isTensor()) tell_shape(recorder, output.toTensor());
      if (!output.isTensorList()) continue;
      for (const at::Tensor& tensor : output.toTensorVector()) tell_shape(recorder, tensor);
    }
  });
}

}  // namespace

class MemoryObserver::Recorder final : public RangeListener {
 public:
  explicit Recorder(c10::DeviceType device) : device_(device) {
    {
      const std::lock_guard lock(recorder_mutex);
      require(current_recorder == nullptr, "[memory] expected one observer of memory at a time");
    }
    if (device == c10::DeviceType::CPU) {
      listen_to_cpu_memory(cpu_.get());
    } else {
      listen_to_gpu_memory(gpus_.get());
    }
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(operator_begins, operator_ends)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    listen_to_ranges(this);
    const std::lock_guard lock(recorder_mutex);
    current_recorder = &recorder_;
  }

  ~Recorder() override { stop(); }

  void stop() {
    if (stopped_) return;
    stopped_ = true;
    listen_to_ranges(nullptr);
    at::removeCallback(handle_);
    if (device_ == c10::DeviceType::CPU) {
      listen_to_cpu_memory(nullptr);
    } else {
      listen_to_gpu_memory(nullptr);
    }
    const std::lock_guard lock(recorder_mutex);
    current_recorder = nullptr;
  }

  void begin_range(const char* name) override {
    record([&](MemoryRecorder& r) { r.begin_range(name, at::sequence_number::peek()); });
  }
  void end_range() override {
    record([&](MemoryRecorder& r) { r.end_range(at::sequence_number::peek()); });
  }

  MemoryRecorder& recorder() { return recorder_; }

 private:
  c10::DeviceType device_;
  MemoryRecorder recorder_;
  std::unique_ptr<CpuMemoryListener> cpu_ = std::make_unique<CpuListener>();
  std::unique_ptr<GpuMemoryListener> gpus_ = std::make_unique<GpuListener>();
  at::CallbackHandle handle_ = 0;
  bool stopped_ = false;
};

MemoryObserver::MemoryObserver(c10::DeviceType device)
    : recorder_(std::make_unique<Recorder>(device)) {}

MemoryObserver::~MemoryObserver() = default;

void MemoryObserver::label(MemoryKind kind, at::ArrayRef<at::Tensor> tensors) {
  record([&](MemoryRecorder& recorder) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !tensor.has_storage()) continue;
      recorder.label(number(tensor.storage().data()), kind);
    }
  });
}

MemoryTrace MemoryObserver::take() {
  recorder_->stop();
  return recorder_->recorder().take();
}

}  // namespace flashstep::measure
