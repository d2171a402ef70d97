#define USE_C10D_GLOO  // else LibTorch's header is empty
#include <gloo/allreduce.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "flashstep/bench/bare_collectives.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

// Opens what c10d keeps for its own works: the connections, and the number that tells messages of
// one collective from another's.
struct Opened : c10d::ProcessGroupGloo {
  static auto context() { return &Opened::getContext; }
  static auto next_tag() { return &Opened::nextTag; }
};

template <typename T>
void add(void* sum, const void* a, const void* b, size_t elements) {
  auto* const out = static_cast<T*>(sum);
  const auto* const left = static_cast<const T*>(a);
  const auto* const right = static_cast<const T*>(b);
  for (size_t i = 0; i < elements; ++i) out[i] = left[i] + right[i];
}

std::function<void(void*, const void*, const void*, size_t)> sum_of(at::ScalarType type) {
  if (type == at::kFloat) return add<float>;
  return type == at::kHalf ? add<at::Half> : add<at::BFloat16>;
}

}  // namespace

std::function<void()> make_bare_gloo(const Group& group, at::Tensor tensor) {
  const auto backend = group.process_group().getBackend(at::kCPU);
  require(tensor.is_cpu(), "[gloo] expected a CPU tensor, got one on ", tensor.device());
  require(backend->getBackendName() == "gloo", "[gloo] expected a group of Gloo, got ",
          backend->getBackendName());
  return [backend, tensor] {
    auto& gloo = static_cast<c10d::ProcessGroupGloo&>(*backend);
    gloo::AllreduceOptions options;
    options.tag = (gloo.*Opened::next_tag())();
    options.context = (gloo.*Opened::context())(options.tag);
    options.timeout = options.context->getTimeout();
    options.out.push_back(options.context->createUnboundBuffer(
        tensor.data_ptr(), static_cast<size_t>(tensor.nbytes())));
    options.elements = static_cast<size_t>(tensor.numel());
    options.element_size = static_cast<size_t>(tensor.element_size());
    options.reduce = sum_of(tensor.scalar_type());
    gloo::allreduce(options);
  };
}

}  // namespace flashstep::tools
