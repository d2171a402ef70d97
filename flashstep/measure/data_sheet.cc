#include "flashstep/measure/data_sheet.h"

namespace flashstep::measure {
namespace {

constexpr double kTera = 1e12;
constexpr const char* kH200 =
    "NVIDIA H200 Tensor Core GPU data sheet (tensor rates halved: no sparsity)";
constexpr const char* kH100 =
    "NVIDIA H100 Tensor Core GPU data sheet (tensor rates halved: no sparsity)";
constexpr const char* kA100 = "NVIDIA A100 Tensor Core GPU data sheet";
constexpr const char* kB200 =
    "NVIDIA Blackwell data sheet, HGX B200 / 8 (tensor rates halved: no sparsity)";

// The first row whose name stands in the GPU's name holds: special models come before general ones.
constexpr DataSheet kSheets[] = {
    // name         fp32           tf32            bf16            fp16            memory
    {"H200 NVL", 60 * kTera, 417.5 * kTera, 835.5 * kTera, 835.5 * kTera, 4.8 * kTera, kH200},
    {"H200", 67 * kTera, 494.5 * kTera, 989.5 * kTera, 989.5 * kTera, 4.8 * kTera, kH200},
    {"H100 NVL", 60 * kTera, 417.5 * kTera, 835.5 * kTera, 835.5 * kTera, 3.9 * kTera, kH100},
    {"H100 PCIe", 51 * kTera, 378 * kTera, 756.5 * kTera, 756.5 * kTera, 2.0 * kTera, kH100},
    {"H100", 67 * kTera, 494.5 * kTera, 989.5 * kTera, 989.5 * kTera, 3.35 * kTera, kH100},
    {"A100-SXM4-80GB", 19.5 * kTera, 156 * kTera, 312 * kTera, 312 * kTera, 2.039 * kTera, kA100},
    {"A100 80GB PCIe", 19.5 * kTera, 156 * kTera, 312 * kTera, 312 * kTera, 1.935 * kTera, kA100},
    {"A100", 19.5 * kTera, 156 * kTera, 312 * kTera, 312 * kTera, 1.555 * kTera, kA100},
    {"B200", 75 * kTera, 1100 * kTera, 2250 * kTera, 2250 * kTera, 7.7 * kTera, kB200},
};

}  // namespace

std::optional<DataSheet> find_data_sheet(const std::string& gpu_name) {
  for (const DataSheet& sheet : kSheets)
    if (gpu_name.find(sheet.name) != std::string::npos) return sheet;
  return std::nullopt;
}

}  // namespace flashstep::measure
