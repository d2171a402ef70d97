// Work beside the one that a device is doing: on a GPU another stream, on a CPU nothing (it runs at
// once). Uses c10's generic streams, so a build without CUDA compiles the same lines.
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/base/text.h"
#include "flashstep/group.h"

namespace flashstep {

class SideStream {
 public:
  // The group's.
  SideStream(const Group& group, at::Device device) : device_(device) {
    if (!device.is_cpu()) stream_ = group.side_stream(device);
  }
  // One of its own.
  explicit SideStream(at::Device device) : device_(device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }

  // Runs `body` so that what it launches starts after what the current stream holds by now, and
  // what every stream held that await_current() was called under since the last run.
  template <typename Body>
  void run(Body&& body) {
    if (!stream_) {
      std::forward<Body>(body)();
      return;
    }
    await_current();
    follow(*awaited_);
    awaited_.reset();
    const c10::StreamGuard guard(*stream_);
    std::forward<Body>(body)();
  }

  // For inputs of a later run() that may be under another stream. Costs nothing while the current
  // stream stays the same: the first call under another one is where the one before is waited for.
  void await_current() {
    if (!stream_) return;
    const c10::Stream now = current();
    if (awaited_ && *awaited_ != now) follow(*awaited_);
    awaited_ = now;
  }

  // What the current stream gets from now on starts after what this one holds by now.
  void join() const {
    if (!stream_) return;
    c10::Event reached(device_.type());
    reached.record(*stream_);
    reached.block(current());
  }

  // What this stream holds by now; and what the current stream gets from now on starts after that.
  std::optional<c10::Event> mark() const {
    if (!stream_) return std::nullopt;
    std::optional<c10::Event> reached(std::in_place, device_.type());
    reached->record(*stream_);
    return reached;
  }
  void await(const std::optional<c10::Event>& reached) const {
    if (reached) reached->block(current());
  }

  // The memory of `tensor` is not given to others before this stream has reached this point.
  void keep(const at::Tensor& tensor) const {
    if (stream_) tensor.record_stream(*stream_);
  }
  // The same of a tensor that was made on this stream, for the current one.
  void hand_over(const at::Tensor& tensor) const {
    if (stream_) tensor.record_stream(current());
  }

  // The device's current one.
  c10::Stream current() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }

 private:
  void follow(const c10::Stream& other) const {
    c10::Event reached(device_.type());
    reached.record(other);
    reached.block(*stream_);
  }

  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> awaited_;  // the last of those that run() must wait for
};

}  // namespace flashstep
