// The PTX instructions these kernels use, each wrapped once, by name. All exist from sm_80.
// Source: NVIDIA, "PTX ISA", sections on mma, ldmatrix and cp.async (fragment layouts: mma.cuh).
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

namespace flashstep::attention_cuda {

// The address of shared memory as the instructions below take it.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A number that other kernels have written. The compiler keeps the order of these loads, and hoists
// none out of a branch: kernels whose registers are full spill less than with plain ones.
__device__ inline int load_in_order(const int32_t* from) {
  int x;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// c (16, 8) += a (16, 16) b (16, 8), bfloat16 products summed in float32.
__device__ inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c (16, 8) += a (16, 16) b (16, 8), float16 products summed in float32.
__device__ inline void mma_m16n8k16_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c (16, 8) += a (16, 8) b (8, 8); the low 13 bits of the float32 operands are not read.
__device__ inline void mma_m16n8k8_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 rows of 16 bytes. Lane i gives the address of row i % 8 of matrix i / 8, and
// receives in r[j] the 4 bytes i % 4 of row i / 4 of matrix j.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix of 8 x 8 16-bit elements transposed.
__device__ inline void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ inline void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ inline uint2 load_shared_pair(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

__device__ inline void store_shared_pair(uint32_t address, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}

// *sum += value, atomically, in global memory.
__device__ inline void add_to_global(float* sum, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(sum)),
               "f"(value)
               : "memory");
}

// sum[0..3] += value, each atomically; sum is a multiple of 16 bytes in global memory.
__device__ inline void add_to_global(float* sum, const float (&value)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(sum)),
               "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i) add_to_global(sum + i, value[i]);
#endif
}

// Starts a copy of 16 bytes from global to shared memory past L1; zeros where `valid` is false
// (nothing is read then, wherever the address points).
__device__ inline void cp_async_16(uint32_t destination, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(__cvta_generic_to_global(source)), "r"(valid ? 16 : 0)
               : "memory");
}

// The copies started since the last commit become one group of this thread.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the kNewest last groups of this thread are under way.
template <int kNewest>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// In a kernel that launch_after started early: waits until the kernels before it are done and their
// writes are seen. Nothing before sm_90, where no kernel starts early.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the blocks of such a kernel start as soon as all blocks of this one have called this or
// ended.
__device__ inline void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// 2^x with a relative error below 2^-22; exp2(-infinity) = 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers in one register, `low` in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline float2 unpack_f16(uint32_t packed) {
  float low, high;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(low), "=f"(high)
      : "r"(packed));
  return make_float2(low, high);
}

}  // namespace flashstep::attention_cuda
