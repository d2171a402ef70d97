// Tests are told at run time: the address sanitizer's build takes their objects from the plain one.
#pragma once

#include <dlfcn.h>

namespace flashstep::testing {

// Whether a sanitizer's heap is in the place of the C library's: it keeps freed memory, and much
// beside it.
inline bool has_a_sanitizers_heap() {
  return ::dlsym(RTLD_DEFAULT, "__sanitizer_get_heap_size") != nullptr;
}

}  // namespace flashstep::testing
