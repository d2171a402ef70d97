#include "flashstep/products/tuned.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace flashstep {
namespace {

constexpr auto kFloat32 = at::kFloat;
constexpr auto kBFloat16 = at::kBFloat16;
constexpr bool kByRows = false, kByColumns = true, kAdds = true, kAlone = false;

// The last entry, of no GPU, stands for an empty table.
constexpr TunedProduct kTable[] = {
#include "flashstep/products/tuned.inc"
    {"", 0, {}, 0}};

}  // namespace

std::span<const TunedProduct> tuned_products() {
  return std::span<const TunedProduct>(kTable).first(std::size(kTable) - 1);
}

int64_t tuned_algorithm(const char* gpu, int64_t version, const ProductShape& shape) {
  const auto table = tuned_products();
  const auto found = std::find_if(table.begin(), table.end(), [&](const TunedProduct& entry) {
    return entry.version == version && entry.shape == shape && std::strcmp(entry.gpu, gpu) == 0;
  });
  return found == table.end() ? 0 : found->algorithm;
}

}  // namespace flashstep
