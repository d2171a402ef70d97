// What operators compute and move.
#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "flashstep/attention/cost.h"
#include "flashstep/base/text.h"
#include "flashstep/trace/work_class.h"

namespace flashstep::tools {
namespace {

double elements(const Operand& operand) {
  return std::accumulate(
      operand.shape.begin(), operand.shape.end(), 1.0,
      [](double product, int64_t n) { return product * static_cast<double>(n); });
}

double bytes_of(const Operand& operand) {
  return elements(operand) * static_cast<double>(operand.element_bytes);
}

double all_bytes(std::span<const Operand> operands) {
  return std::transform_reduce(operands.begin(), operands.end(), 0.0, std::plus(), bytes_of);
}

std::vector<Operand> tensors_among(std::span<const Operand> operands) {
  std::vector<Operand> tensors;
  std::ranges::copy_if(operands, std::back_inserter(tensors),
                       [](const Operand& o) { return o.element_bytes > 0; });
  return tensors;
}

// The result of broadcasting all tensors, with the first one's dtype.
double broadcast_bytes(const std::vector<Operand>& tensors) {
  if (tensors.empty()) return 0;
  Operand result{{}, tensors.front().element_bytes};
  for (const Operand& tensor : tensors) {
    const size_t rank = std::max(result.shape.size(), tensor.shape.size());
    result.shape.insert(result.shape.begin(), rank - result.shape.size(), 1);
    const size_t offset = rank - tensor.shape.size();
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      result.shape[offset + i] = std::max(result.shape[offset + i], tensor.shape[i]);
    }
  }
  return bytes_of(result);
}

// The first two tensors, matrices or stacks of them: (..., m, k) and (..., k, n). What addmm and
// the like add comes before them, where they write behind.
OperatorWork product(std::string_view stem, std::span<const Operand> tensors) {
  if (stem.find("add") != std::string_view::npos && !tensors.empty()) tensors = tensors.subspan(1);
  if (tensors.size() < 2 || tensors[0].shape.size() < 2) return {};
  const Operand *a = &tensors[0], *b = &tensors[1];
  if (a->shape.size() != b->shape.size()) return {};
  const auto& left = a->shape;
  if (left.back() != b->shape[b->shape.size() - 2]) return {};
  const double columns = static_cast<double>(b->shape.back());
  const double result = elements(*a) / std::max(1.0, static_cast<double>(left.back())) * columns;
  const int64_t of_result = std::max<int64_t>(a->element_bytes, 2);  // of 8 bits nobody makes one
  return {2 * elements(*a) * columns,
          bytes_of(*a) + bytes_of(*b) + result * static_cast<double>(of_result)};
}

// Forward (q, k, v) or backward (gradient of the output, q, k, v): tensors (B..., H, N, D).
OperatorWork fused_attention(std::string_view name, std::vector<Operand> tensors) {
  if (tensors.empty() || tensors.front().shape.size() < 2) return {};
  const size_t rank = tensors.front().shape.size();
  std::erase_if(tensors, [&](const Operand& t) { return t.shape.size() != rank; });
  const bool backward = name.find("backward") != name.npos;
  if (tensors.size() < (backward ? 4u : 3u)) return {};
  const auto& q = tensors[backward ? 1 : 0].shape;
  const auto& k = tensors[backward ? 2 : 1].shape;
  AttentionSize size{.n = q[rank - 2], .m = k[rank - 2], .head_dim = q[rank - 1]};
  if (rank > 2) size.heads = q[rank - 3], size.kv_heads = k[rank - 3];
  size.batches =
      std::accumulate(q.begin(), q.end() - std::min<int64_t>(static_cast<int64_t>(rank), 3),
                      int64_t{1}, std::multiplies<>());
  size.causal = size.n == size.m;
  const int64_t element = tensors.front().element_bytes;
  if (backward) {
    return {attention_backward_flops(size), attention_backward_bytes(size, element)};
  }
  return {attention_forward_flops(size), attention_forward_bytes(size, element)};
}

// Rows of a table, which are not the whole of it.
double rows_bytes(const Operand& table, const Operand& ids) {
  const double row = bytes_of(table) / std::max(1.0, static_cast<double>(table.shape.front()));
  return bytes_of(ids) + 2 * elements(ids) * row;
}

// Operators of ours that name all tensors that they read and write (ops/cuda_kernels.cc).
constexpr std::string_view kNameAll =
    " rms_norm_forward rms_norm_backward rope swiglu_forward swiglu_backward cross_entropy "
    "cross_entropy_backward embedding_backward largest to_float8 swiglu_to_float8 ";

// Operators that compute nothing themselves: what they call is recorded too.
constexpr std::string_view kOnlyCall =
    " matmul linear einsum to _to_copy contiguous clone zeros zeros_like ones ones_like full "
    "full_like repeat repeat_interleave stack softmax log_softmax cross_entropy_loss nll_loss "
    "nll_loss_nd new_zeros select_backward slice_backward scalar_tensor layer_norm ";

}  // namespace

int64_t profiled_element_bytes(std::string_view dtype) {
  static const std::unordered_map<std::string_view, int64_t> known = {{"float", 4},
                                                                      {"c10::BFloat16", 2},
                                                                      {"c10::Half", 2},
                                                                      {"TensorList", 4},
                                                                      {"double", 8},
                                                                      {"long int", 8},
                                                                      {"long", 8},
                                                                      {"int", 4},
                                                                      {"short int", 2},
                                                                      {"unsigned char", 1},
                                                                      {"signed char", 1},
                                                                      {"bool", 1},
                                                                      {"c10::Float8_e4m3fn", 1},
                                                                      {"c10::Float8_e5m2", 1}};
  const auto at = known.find(dtype);
  return at == known.end() ? 0 : at->second;
}

bool operator_works(std::string_view name) {
  const WorkClass work_class = class_of_operator(name);
  return work_class != WorkClass::kHost && work_class != WorkClass::kOther &&
         !contains(kOnlyCall, str(" ", last_name(name), " "));
}

OperatorWork operator_work(std::string_view name, std::span<const Operand> operands) {
  if (!operator_works(name)) return {};
  const std::string_view stem = last_name(name);
  const WorkClass work_class = class_of_operator(name);
  std::vector<Operand> tensors = tensors_among(operands);
  if (work_class == WorkClass::kMatmul) return product(stem, tensors);
  if (work_class == WorkClass::kAttention) return fused_attention(name, std::move(tensors));
  const double read = all_bytes(tensors);
  if (work_class == WorkClass::kReduction) return {0, read};
  if (name.starts_with("flashstep::") && contains(kNameAll, str(" ", stem, " "))) return {0, read};
  if ((stem == "embedding" || stem == "index_select") && tensors.size() == 2 &&
      !tensors[0].shape.empty()) {
    return {0, rows_bytes(tensors[0], tensors[1])};
  }
  // Of the table what the result holds; an index may be one element that stands for a row.
  if (stem == "gather" && tensors.size() >= 2)
    return {0, 2 * elements(tensors[1]) * static_cast<double>(tensors[0].element_bytes)};
  if (stem == "copy_" || stem == "fill_" || stem == "zero_") return {0, read};
  if (stem == "cat") return {0, 2 * read};
  if (stem == "_fused_adamw_")
    return {0, read * 7 / 4};  // four lists read, all but gradients written
  if (stem.ends_with("_") && !tensors.empty()) return {0, read + bytes_of(tensors.front())};
  return {0, read + broadcast_bytes(tensors)};
}

}  // namespace flashstep::tools
