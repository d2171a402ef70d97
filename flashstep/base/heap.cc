#include "flashstep/base/heap.h"

#include <malloc.h>

namespace flashstep {

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // no block is a mapping of its own, unmapped when freed
  mallopt(M_TRIM_THRESHOLD, -1);  // the top of the heap is never given back
  mallopt(M_TOP_PAD, 64 << 20);   // bytes: the heap grows in large steps
}

void give_freed_memory_back() { malloc_trim(/*pad=*/0); }

}  // namespace flashstep
