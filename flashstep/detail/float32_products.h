// How matrix products of float32 are computed on GPUs: a part of ops.h.
#pragma once

namespace flashstep {

// How float32 is multiplied on GPUs, which have no tensor cores for it.
enum class Float32Products {
  kExact,  // in float32, or TF32 where LibTorch is told to
  // Each number as the sum of two bfloat16, and the three largest of their four products ("bf16x3";
  // Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype", 2019):
  // about 5 times as fast. Relative to the root mean square 5e-6 to 2e-5 from the product, more for
  // large K, instead of 7e-7. Numbers beyond bfloat16's largest, 3.39e38, count as infinite, and
  // what is not finite makes its row and column of d not finite. Takes 6 bytes for each element of
  // a and b while it computes.
  kSplit,
};

// For the whole process, until it is set again; kExact at first. Products with a side below 64 stay
// exact.
void set_float32_products(Float32Products how);
Float32Products float32_products();

}  // namespace flashstep
