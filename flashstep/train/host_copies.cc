#include "flashstep/train/host_copies.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace flashstep {
namespace {

using at::Tensor;

constexpr int64_t kPieceBytes = int64_t{4} << 20;

// (n) each, of one dtype.
struct Piece {
  Tensor from, to;
};

// Fewer, larger pages are touched for the first time in a fraction of the time.
void want_large_pages(const Tensor& copy) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto memory = reinterpret_cast<uintptr_t>(copy.mutable_data_ptr());
  const uintptr_t begin = (memory + page - 1) / page * page,
                  end = (memory + copy.nbytes()) / page * page;
  if (begin < end)
    static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
}

Tensor flat(const Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

void add_pieces(const Tensor& from, const Tensor& to, std::vector<Piece>& pieces) {
  const auto step = kPieceBytes / static_cast<int64_t>(from.element_size());
  for (int64_t begin = 0; begin < from.numel(); begin += step) {
    const int64_t end = std::min(begin + step, from.numel());
    pieces.push_back({from.slice(0, begin, end), to.slice(0, begin, end)});
  }
}

// What one thread copies. From other devices through pinned memory, on a stream of its own: a copy
// into any other memory goes through the driver's, which threads share.
void copy(const Piece* begin, const Piece* end) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensor pinned;
  std::optional<c10::StreamGuard> stream;
  for (const Piece* piece = begin; piece < end; ++piece) {
    const at::Device device = piece->from.device();
    if (device.is_cpu()) {
      piece->to.copy_(piece->from);
      continue;
    }
    if (!stream || stream->current_device() != device) {
      stream.reset();
      stream.emplace(
          c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false));
      pinned = at::empty({kPieceBytes}, at::TensorOptions(at::kByte).pinned_memory(true));
    }
    const auto bytes = static_cast<int64_t>(piece->from.nbytes());
    const Tensor between = pinned.slice(0, 0, bytes).view(piece->from.scalar_type());
    between.copy_(piece->from);
    piece->to.copy_(between);
  }
}

}  // namespace

std::vector<Tensor> copies_on_host(const std::vector<Tensor>& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Tensor> copies;
  std::vector<Piece> pieces;
  for (const Tensor& tensor : tensors) {
    const Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
    copies.push_back(
        at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(at::kCPU)));
    want_large_pages(copies.back());
    add_pieces(flat(dense), flat(copies.back()), pieces);
  }
  for (const Tensor& tensor : tensors) {
    const at::Device device = tensor.device();
    if (!device.is_cpu())
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    copy(pieces.data() + begin, pieces.data() + end);
  });
  return copies;
}

}  // namespace flashstep
