#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "flashstep/products/cuda/counters.h"

#define FLASHSTEP_TRY(call) \
  if (const cudaError_t error = call; error != cudaSuccess) return error

namespace flashstep::products_cuda {
namespace {

constexpr size_t kCounterBytes = 256;  // where cuBLASLt lets a workspace begin

// Of all threads that record.
std::mutex mutex;
std::map<unsigned long long, RecordedCounters*> recordings;

// What `stream` is recorded into; 0 for nothing.
unsigned long long recording_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // whoever computes there meets it
    return 0;
  }
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

using Nodes = std::vector<cudaGraphNode_t>;

cudaError_t neighbours_of(cudaGraphNode_t node, decltype(&cudaGraphNodeGetDependencies) get,
                          Nodes& nodes) {
  size_t count = 0;
  FLASHSTEP_TRY(get(node, nullptr, nullptr, &count));
  nodes.resize(count);
  std::vector<cudaGraphEdgeData> edges(count);
  return get(node, nodes.data(), edges.data(), &count);
}

cudaError_t nodes_of(cudaGraph_t graph, decltype(&cudaGraphGetNodes) get, Nodes& nodes) {
  size_t count = 0;
  FLASHSTEP_TRY(get(graph, nullptr, &count));
  nodes.resize(count);
  return get(graph, nodes.data(), &count);
}

// Its predecessors become those of its successors.
cudaError_t take_out(cudaGraph_t graph, cudaGraphNode_t node) {
  Nodes before, after;
  FLASHSTEP_TRY(neighbours_of(node, cudaGraphNodeGetDependencies, before));
  FLASHSTEP_TRY(neighbours_of(node, cudaGraphNodeGetDependentNodes, after));
  for (const cudaGraphNode_t from : before) {
    for (const cudaGraphNode_t to : after)
      FLASHSTEP_TRY(cudaGraphAddDependencies(graph, &from, &to, nullptr, 1));
  }
  return cudaGraphDestroyNode(node);
}

}  // namespace

RecordedCounters::RecordedCounters(void* memory, cudaStream_t stream)
    : memory_(static_cast<uint8_t*>(memory)), recording_(recording_of(stream)) {
  const std::lock_guard lock(mutex);
  recordings[recording_] = this;
}

RecordedCounters::~RecordedCounters() {
  const std::lock_guard lock(mutex);
  recordings.erase(recording_);
}

void* RecordedCounters::take(size_t bytes, cudaStream_t stream) {
  if (bytes > kCounterBytes) return nullptr;
  const unsigned long long recording = recording_of(stream);
  if (recording == 0) return nullptr;
  const std::lock_guard lock(mutex);
  const auto found = recordings.find(recording);
  if (found == recordings.end()) return nullptr;
  RecordedCounters& own = *found->second;
  if (own.taken_ == kBytes) return nullptr;
  return own.memory_ + std::exchange(own.taken_, own.taken_ + kCounterBytes);
}

cudaError_t RecordedCounters::zero_at_start(cudaGraph_t graph) const {
  Nodes nodes;
  std::map<size_t, Nodes> memsets;  // by counter
  FLASHSTEP_TRY(nodes_of(graph, cudaGraphGetNodes, nodes));
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    if (cudaGraphNodeGetType(node, &type) != cudaSuccess) {  // of a kind without a name
      static_cast<void>(cudaGetLastError());
      continue;
    }
    // CUDA takes no node out of a graph that allocates.
    if (type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree) return cudaSuccess;
    if (type != cudaGraphNodeTypeMemset) continue;
    cudaMemsetParams what{};
    FLASHSTEP_TRY(cudaGraphMemsetNodeGetParams(node, &what));
    const auto* place = static_cast<const uint8_t*>(what.dst);
    if (place < memory_ || place >= memory_ + taken_ || what.value != 0) continue;
    memsets[(place - memory_) / kCounterBytes].push_back(node);
  }
  bool is_any_out = false;
  for (const auto& [counter, of_it] : memsets) {
    if (of_it.size() != 1) continue;  // a second one has its reason
    FLASHSTEP_TRY(take_out(graph, of_it.front()));
    is_any_out = true;
  }
  if (!is_any_out) return cudaSuccess;
  FLASHSTEP_TRY(nodes_of(graph, cudaGraphGetRootNodes, nodes));
  cudaMemsetParams all{};
  all.dst = memory_;
  all.elementSize = 4;
  all.width = taken_ / 4;
  all.height = 1;
  cudaGraphNode_t zero = nullptr;
  FLASHSTEP_TRY(cudaGraphAddMemsetNode(&zero, graph, nullptr, 0, &all));
  for (const cudaGraphNode_t root : nodes)
    FLASHSTEP_TRY(cudaGraphAddDependencies(graph, &zero, &root, nullptr, 1));
  return cudaSuccess;
}

}  // namespace flashstep::products_cuda
