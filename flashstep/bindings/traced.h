// Operators that a compiler, or another mode of Python, looks at.
#pragma once

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

}  // namespace flashstep::bindings
