// Memory of tensors on the host, told how a training loop uses it.
#pragma once

namespace flashstep {

// keep_freed_memory(), and from now on LibTorch takes a tensor's memory by malloc and aligns it by
// itself, 64 bytes, as its own allocator does by posix_memalign. The C library (glibc before 2.38)
// cuts an aligned block out of a larger one, and small objects settle in the chips: what is freed
// then has no room for the same tensor again, and the process grows to twice its tensors.
void keep_memory_of_tensors();

}  // namespace flashstep
