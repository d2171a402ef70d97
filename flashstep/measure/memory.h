// Memory of this process on the host. GPU memory is in gpu.h.
#pragma once

#include <cstdint>
#include <optional>

namespace flashstep::measure {

uint64_t resident_bytes();  // now; 0 where /proc does not say

// What a process may still take before the kernel has to kill one: by /proc/meminfo, and by the
// limits of this process's container. 0 where neither says.
uint64_t available_bytes();

// Processes that the kernel has ended for want of memory since it runs, anybody's (/proc/vmstat);
// nothing where it does not say.
std::optional<uint64_t> oom_kills();
// Whether it may have ended one since that number was `before`: true where it does not say.
bool may_have_killed_since(std::optional<uint64_t> before);
// Where memory ends, the kernel shall take this process before any other.
void offer_to_oom_killer();

// The most that was resident at once, since the start or since reset_peak_resident().
uint64_t peak_resident_bytes();

// Makes the peak start again from what is resident now (Linux: "5" into /proc/self/clear_refs).
// False where the kernel does not offer that; the peak then remains that of the whole process.
bool reset_peak_resident();

}  // namespace flashstep::measure
