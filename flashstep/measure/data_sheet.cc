#include "flashstep/measure/data_sheet.h"

#include <cctype>
#include <cstddef>
#include <string>

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

constexpr DataSheet kSheets[] = {
    // name         fp32           tf32            bf16            fp16            memory
    {"H200 NVL", 60 * kTera, 417.5 * kTera, 835.5 * kTera, 835.5 * kTera, 4.8 * kTera, 141, kH200},
    {"H200", 67 * kTera, 494.5 * kTera, 989.5 * kTera, 989.5 * kTera, 4.8 * kTera, 141, kH200},
    {"H100 NVL", 60 * kTera, 417.5 * kTera, 835.5 * kTera, 835.5 * kTera, 3.9 * kTera, 94, kH100},
    {"H100 PCIe", 51 * kTera, 378 * kTera, 756.5 * kTera, 756.5 * kTera, 2.0 * kTera, 80, kH100},
    {"H100", 67 * kTera, 494.5 * kTera, 989.5 * kTera, 989.5 * kTera, 3.35 * kTera, 80, kH100},
    {"A100-SXM4-80GB", 19.5 * kTera, 156 * kTera, 312 * kTera, 312 * kTera, 2.039 * kTera, 80,
     kA100},
    {"A100 80GB PCIe", 19.5 * kTera, 156 * kTera, 312 * kTera, 312 * kTera, 1.935 * kTera, 80,
     kA100},
    {"A100", 19.5 * kTera, 156 * kTera, 312 * kTera, 312 * kTera, 1.555 * kTera, 40, kA100},
    {"B200", 75 * kTera, 1100 * kTera, 2250 * kTera, 2250 * kTera, 7.7 * kTera, 180, kB200},
};

constexpr LinkSheet kLinkSheets[] = {
    {"H200 NVL", 450e9, "NVLink 4, 18 links of 25 GB/s a direction (H200 data sheet: 900 GB/s)"},
    {"H200", 450e9, "NVLink 4, 18 links of 25 GB/s a direction (H200 data sheet: 900 GB/s)"},
    {"H100 NVL", 300e9, "NVLink 4, 12 links of 25 GB/s a direction (H100 data sheet: 600 GB/s)"},
    {"H100 PCIe", 300e9, "NVLink 4, 12 links of 25 GB/s a direction (H100 data sheet: 600 GB/s)"},
    {"H100", 450e9, "NVLink 4, 18 links of 25 GB/s a direction (H100 data sheet: 900 GB/s)"},
    {"A100", 300e9, "NVLink 3, 12 links of 25 GB/s a direction (A100 data sheet: 600 GB/s)"},
    {"B200", 900e9, "NVLink 5, 18 links of 50 GB/s a direction (B200 data sheet: 1.8 TB/s)"},
};

// Whether `name` ends a word of `text`: "GB200" has a B200, "H2000" no H200.
bool ends_a_word(const std::string& text, const std::string& name) {
  for (size_t i = text.find(name); i != std::string::npos; i = text.find(name, i + 1)) {
    const size_t end = i + name.size();
    if (end == text.size() || std::isalnum(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

// The first row whose name stands in the GPU's name holds: special models come before general ones.
template <typename Sheet, size_t kCount>
std::optional<Sheet> find(const Sheet (&sheets)[kCount], const std::string& gpu_name) {
  for (const Sheet& sheet : sheets)
    if (ends_a_word(gpu_name, sheet.name)) return sheet;
  return std::nullopt;
}

}  // namespace

std::optional<DataSheet> find_data_sheet(const std::string& gpu_name) {
  return find(kSheets, gpu_name);
}

std::optional<LinkSheet> find_link_sheet(const std::string& gpu_name) {
  return find(kLinkSheets, gpu_name);
}

}  // namespace flashstep::measure
