#include "flashstep/parallel/reduction.h"

#include <algorithm>
#include <sstream>

#include "flashstep/base/error.h"
#include "flashstep/base/hash.h"

namespace flashstep::parallel {
namespace {

// One parameter in one line.
std::string describe(const at::Tensor& tensor, const std::string& name) {
  return flashstep::str(name, " of shape ", tensor.sizes(), ", strides ", tensor.strides(), ", ",
                        c10::toString(tensor.scalar_type()), " on ",
                        c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true),
                        tensor.requires_grad() ? "" : ", frozen");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void throw_first_difference(const std::vector<std::string>& first,
                            const std::vector<std::string>& other, int rank) {
  for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    const std::string expected = i < first.size() ? first[i] : "no more parameters";
    const std::string got = i < other.size() ? other[i] : "no more parameters";
    require(expected == got, "[parallel] expected the same parameters on every rank, but number ",
            i, " is ", expected, " on rank 0 and ", got, " on rank ", rank);
  }
}

}  // namespace

void check_agreement(const ReducedParameters& parameters, const comm::Group& group) {
  std::string text;
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    text += describe(parameters.tensors[i], parameters.names[i]) + "\n";
  }
  const std::vector<std::string> hashes = group.all_gather(hash_bytes(text));
  const auto differs = [&](const std::string& hash) { return hash != hashes.front(); };
  if (std::none_of(hashes.begin(), hashes.end(), differs)) return;
  const std::vector<std::string> texts = group.all_gather(text);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    throw_first_difference(lines_of(texts.front()), lines_of(texts[rank]), static_cast<int>(rank));
  }
}

std::string names_of(const std::vector<int64_t>& indices, const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;  // one sentence, not a page
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(indices.size(), kMost); ++i) named.push_back(names[indices[i]]);
  const size_t rest = indices.size() - named.size();
  return join(named) + (rest > 0 ? flashstep::str(" and ", rest, " more") : "");
}

}  // namespace flashstep::parallel
