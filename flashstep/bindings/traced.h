// Operators that a compiler, or another mode of Python, looks at.
#pragma once

#include <tuple>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

namespace flashstep::bindings {

template <typename Signature>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Somebody looks at calls (a mode, a tensor's own class), or there are no numbers to compute with.
inline bool is_looked_at(const at::Tensor& x) {
  constexpr c10::DispatchKeySet kLooking(
      {c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
  return x.is_meta() || x.key_set().has_any(kLooking) ||
         c10::impl::tls_local_dispatch_key_set().included_.has_any(kLooking);
}

// Under autocast in its dtype, as PyTorch's operators of lower precision have it.
inline at::Tensor in_autocast_dtype(const at::Tensor& x) {
  const auto device = x.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device) ||
      !x.is_floating_point() || x.scalar_type() == at::kDouble) {
    return x;
  }
  return x.to(at::autocast::get_autocast_dtype(device));
}
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> in_autocast_dtype(const at::Tensor& q,
                                                                        const at::Tensor& k,
                                                                        const at::Tensor& v) {
  return {in_autocast_dtype(q), in_autocast_dtype(k), in_autocast_dtype(v)};
}

}  // namespace flashstep::bindings
