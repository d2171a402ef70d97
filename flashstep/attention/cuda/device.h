// The numbers of a GPU that plans depend on. No CUDA headers: plans are tested without a GPU.
#pragma once

namespace flashstep::attention_cuda {

// What a plan may use of a GPU; its numbers come from cudaDeviceProp, or from a test.
struct Device {
  int sm_count;
  int shared_bytes_per_block;  // with opt-in: 99 KiB (sm_86, sm_89), 163 KiB (sm_80), 227 KiB
                               // (sm_90)
  int shared_bytes_per_sm;
  bool warpgroups = false;  // compute capability 9.0, and code for it (sm_90a) in this build
};

}  // namespace flashstep::attention_cuda
