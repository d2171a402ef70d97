// The C library's heap, told how a training loop uses it.
#pragma once

namespace flashstep {

// From now on memory that is freed stays with the process and is used again, however large the
// block. A training step allocates and frees the same hundreds of megabytes every time; by default
// each large block goes back to the kernel, which then clears every page of the next one (a tenth
// of a small model's step on a CPU). The process keeps the most that it ever needed at once.
void keep_freed_memory();

// Once: the pages that nothing lies in go back to the kernel, keep_freed_memory() or not. So what
// is resident next does not depend on what was there before, but for the gaps between what stays.
void give_freed_memory_back();

}  // namespace flashstep
