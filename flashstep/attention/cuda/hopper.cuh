// The instructions that only sm_90a has, each wrapped once: barriers that count bytes, copies of
// tensor tiles (TMA), products of a warpgroup (wgmma), and registers that move between warps.
//
// Tiles in shared memory are columns of 64 16-bit elements: 128 bytes a row, rows one after the
// other, the 16-byte chunks of a row exchanged by its number modulo 8 (the 128-byte swizzle), which
// both TMA and wgmma know. A tile starts at a multiple of 1024 bytes.
// Source: NVIDIA, "PTX ISA", sections on mbarrier, cp.async.bulk.tensor and wgmma.
#pragma once

#include <cuda.h>

#include "flashstep/attention/cuda/element.cuh"
#include "flashstep/attention/cuda/ptx.cuh"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

constexpr int kWarpgroup = 128;    // threads
constexpr int kSwizzledRow = 128;  // bytes
constexpr int kSwizzledColumns = 64;
constexpr int kSwizzleBytes = 1024;  // eight rows: the pattern's period

// --- barriers in shared memory ---

__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialised barriers seen by TMA.
__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once, and adds to the bytes that must come before the barrier's phase ends.
__device__ inline void arrive_expecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of this parity (0, 1, 0, ...) has ended. Parity 1 of a fresh barrier has.
__device__ inline void wait_barrier(uint32_t barrier, int parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// --- tiles from global memory ---

// One box of a (batch, head, row, column) map; zeros beyond its ends. The bytes count at `barrier`.
__device__ inline void copy_tile(uint32_t destination, const CUtensorMap& map, int column, int row,
                                 int head, int batch, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(destination),
      "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier)
      : "memory");
}

// Consecutive bytes, a multiple of 16 on both sides.
__device__ inline void copy_bytes(uint32_t destination, const void* source, int bytes,
                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier)
      : "memory");
}

// Consecutive bytes from shared to global memory: copied, or added as float32. The thread that has
// started them waits until the source may be written again, or until the result is there.
__device__ inline void copy_bytes_out(float* destination, uint32_t source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(destination)),
               "r"(source), "r"(bytes)
               : "memory");
}
__device__ inline void add_floats_out(float* destination, uint32_t source, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(destination)),
               "r"(source), "r"(bytes)
               : "memory");
}
__device__ inline void await_reads_out() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void await_writes_out() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Between bulk copies and what this thread reads or writes itself, either way.
__device__ inline void fence_bulk_writes() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Writes of threads to shared memory are seen by TMA and wgmma after it.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- registers and warpgroups ---

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Named barriers 1 to 15 of a block; 0 is __syncthreads().
__device__ inline void sync_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ inline void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// --- products of a warpgroup ---

// Before the first product, and after registers that a product reads or writes were changed.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most the kNewest last groups are under way.
template <int kNewest>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewest) : "memory");
}

// Keeps the compiler from moving reads and writes of these registers across.
template <int kBlocks>
__device__ inline void pin_registers(float (&x)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(x[j][i])::"memory");
  }
}

// Where an operand lies: its address and the distance between its columns of 64, in bytes. Rows run
// along the sum (values) or across it (queries, keys): the same bytes, read by another flag.
__device__ inline uint32_t tile_descriptor(uint32_t address, int column_bytes) {
  return static_cast<uint32_t>(column_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}
// The descriptor of a tile that starts so many bytes later, as the instructions take it.
__device__ inline uint64_t advance(uint32_t descriptor, int bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kPeriod = uint64_t{kSwizzleBytes >> 4} << 32;
  return kSwizzle128 | kPeriod | (descriptor + static_cast<uint32_t>(bytes >> 4));
}

#define FLASHSTEP_D4(c, d, j) c(d[j][0]), c(d[j][1]), c(d[j][2]), c(d[j][3])
#define FLASHSTEP_D16(c, d, j)                                                 \
  FLASHSTEP_D4(c, d, j), FLASHSTEP_D4(c, d, j + 1), FLASHSTEP_D4(c, d, j + 2), \
      FLASHSTEP_D4(c, d, j + 3)
#define FLASHSTEP_D32(c, d, j) FLASHSTEP_D16(c, d, j), FLASHSTEP_D16(c, d, j + 4)
#define FLASHSTEP_R32                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
  "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHSTEP_R48 \
  FLASHSTEP_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHSTEP_R64 \
  FLASHSTEP_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d (64, N) += a (64, 16) b (16, N), as fragments of mma.cuh, 16 rows a warp. FIRST sets d.
// first_shared, shared_shared: a and b have their rows across the sum. first_columns, columns:
// their rows run along the sum. registers_shared: b's do.
#define FLASHSTEP_WGMMA_SHARED(TYPE, N, D, REGISTERS, X0, X1, FIRST, NEXT, TRANSPOSED)            \
  static __device__ void FIRST(float(&d)[N / 8][4], uint64_t a, uint64_t b) {                     \
    asm volatile(                                                                                 \
        "{.reg .pred keep; setp.ne.b32 keep, 0, 0;\n"                                             \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, %" #X0 \
        ", %" #X1 ", keep, 1, 1, " #TRANSPOSED ", " #TRANSPOSED ";}\n"                            \
        : D("=f", d)                                                                              \
        : "l"(a), "l"(b));                                                                        \
  }                                                                                               \
  static __device__ void NEXT(float(&d)[N / 8][4], uint64_t a, uint64_t b) {                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS   \
                 "}, %" #X0 ", %" #X1 ", 1, 1, 1, " #TRANSPOSED ", " #TRANSPOSED ";\n"            \
                 : D("+f", d)                                                                     \
                 : "l"(a), "l"(b));                                                               \
  }
#define FLASHSTEP_WGMMA(TYPE, N, D, REGISTERS, X0, X1, X2, X3, X4)                              \
  FLASHSTEP_WGMMA_SHARED(TYPE, N, D, REGISTERS, X0, X1, first_shared, shared_shared, 0)         \
  FLASHSTEP_WGMMA_SHARED(TYPE, N, D, REGISTERS, X0, X1, first_columns, columns, 1)              \
  static __device__ void registers_shared(float(&d)[N / 8][4], const uint32_t(&a)[4],           \
                                          uint64_t b) {                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS \
                 "}, {%" #X0 ", %" #X1 ", %" #X2 ", %" #X3 "}, %" #X4 ", 1, 1, 1, 1;\n"         \
                 : D("+f", d)                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                         \
  }

using attention_kernel::Element;

template <Element kElement, int kColumns>
struct Wgmma;

// c = left (64 rows) right^T over kDim columns, in one group; both tiles have columns of 64.
template <typename Product, int kDim, int kBlocks>
__device__ inline void start_rows_product(float (&c)[kBlocks][4], uint32_t left,
                                          int left_column_bytes, uint32_t right,
                                          int right_column_bytes) {
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
    const int column = i / 4, bytes = i % 4 * 32;
    const uint64_t a = advance(left, column * left_column_bytes + bytes);
    const uint64_t b = advance(right, column * right_column_bytes + bytes);
    if (i == 0)
      Product::first_shared(c, a, b);
    else
      Product::shared_shared(c, a, b);
  }
  wgmma_commit();
}

// c += weights (16-bit fragments) times the rows of a tile, in one group.
template <typename Product, int kBlocks, int kDepth>
__device__ inline void start_weighted_rows(float (&c)[kBlocks][4],
                                           const uint32_t (&weights)[kDepth][4], uint32_t rows) {
#pragma unroll
  for (int i = 0; i < kDepth; ++i)
    Product::registers_shared(c, weights[i], advance(rows, i * 16 * kSwizzledRow));
  wgmma_commit();
}

// c (64 columns of left, some of right) = left^T right over kRows rows of both, in one group.
template <typename Product, int kRows, int kBlocks>
__device__ inline void start_columns_product(float (&c)[kBlocks][4], uint32_t left,
                                             uint32_t right) {
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
    const uint64_t a = advance(left, i * 16 * kSwizzledRow);
    const uint64_t b = advance(right, i * 16 * kSwizzledRow);
    if (i == 0)
      Product::first_columns(c, a, b);
    else
      Product::columns(c, a, b);
  }
  wgmma_commit();
}

// Accumulators of 64 rows as the left operand of the next product.
template <Element kElement, int kDepth>
__device__ inline void pack_fragments(uint32_t (&to)[kDepth][4], const float (&c)[2 * kDepth][4]) {
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      to[i][2 * j] = ElementTraits<kElement>::pack(c[2 * i + j][0], c[2 * i + j][1]);
      to[i][2 * j + 1] = ElementTraits<kElement>::pack(c[2 * i + j][2], c[2 * i + j][3]);
    }
  }
}

#define FLASHSTEP_D64N(c, d) FLASHSTEP_D32(c, d, 0)
#define FLASHSTEP_D96N(c, d) FLASHSTEP_D32(c, d, 0), FLASHSTEP_D16(c, d, 8)
#define FLASHSTEP_D128N(c, d) FLASHSTEP_D32(c, d, 0), FLASHSTEP_D32(c, d, 8)
template <>
struct Wgmma<Element::kBfloat16, 64> {
  FLASHSTEP_WGMMA("bf16", 64, FLASHSTEP_D64N, FLASHSTEP_R32, 32, 33, 34, 35, 36)
};
template <>
struct Wgmma<Element::kFloat16, 64> {
  FLASHSTEP_WGMMA("f16", 64, FLASHSTEP_D64N, FLASHSTEP_R32, 32, 33, 34, 35, 36)
};
template <>
struct Wgmma<Element::kBfloat16, 96> {
  FLASHSTEP_WGMMA("bf16", 96, FLASHSTEP_D96N, FLASHSTEP_R48, 48, 49, 50, 51, 52)
};
template <>
struct Wgmma<Element::kFloat16, 96> {
  FLASHSTEP_WGMMA("f16", 96, FLASHSTEP_D96N, FLASHSTEP_R48, 48, 49, 50, 51, 52)
};
template <>
struct Wgmma<Element::kBfloat16, 128> {
  FLASHSTEP_WGMMA("bf16", 128, FLASHSTEP_D128N, FLASHSTEP_R64, 64, 65, 66, 67, 68)
};
template <>
struct Wgmma<Element::kFloat16, 128> {
  FLASHSTEP_WGMMA("f16", 128, FLASHSTEP_D128N, FLASHSTEP_R64, 64, 65, 66, 67, 68)
};
#undef FLASHSTEP_D4
#undef FLASHSTEP_D16
#undef FLASHSTEP_D32
#undef FLASHSTEP_R32
#undef FLASHSTEP_R48
#undef FLASHSTEP_R64
#undef FLASHSTEP_D64N
#undef FLASHSTEP_D96N
#undef FLASHSTEP_D128N
#undef FLASHSTEP_WGMMA
#undef FLASHSTEP_WGMMA_SHARED

}  // namespace flashstep::attention_cuda
