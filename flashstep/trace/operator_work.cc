// What operators compute and move.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "flashstep/attention/cost.h"
#include "flashstep/base/text.h"
#include "flashstep/trace/work_class.h"

namespace flashstep::tools {
namespace {

// Classes of operators and of autograd's nodes.
struct NodeRule {
  std::string_view part;
  WorkClass work_class;
};

// Functions of ours that the dispatcher does not see, by their nodes in the backward pass.
constexpr NodeRule kNodeRules[] = {
    {"FusedRmsNorm", WorkClass::kReduction},
    {"FusedSwiglu", WorkClass::kElementwise},
    {"FusedCrossEntropy", WorkClass::kSoftmax},
    {"FusedRope", WorkClass::kElementwise},
};

using OperatorClasses = std::unordered_map<std::string_view, WorkClass>;

// PyTorch's operators by name, and ours, without "aten::", the "_" of those in place, and
// "_backward".
OperatorClasses make_operator_classes() {
  OperatorClasses classes;
  const auto add = [&](WorkClass work_class, std::string_view names) {
    while (!names.empty()) {
      const size_t length = std::min(names.find(' '), names.size());
      classes.emplace(names.substr(0, length), work_class);
      names.remove_prefix(std::min(length + 1, names.size()));
    }
  };
  add(WorkClass::kMatmul,
      "mm addmm bmm baddbmm addbmm matmul linear dot mv addmv _scaled_mm einsum convolution "
      "conv1d conv2d _convolution mkldnn_linear mkldnn_convolution");
  add(WorkClass::kSoftmax,
      "softmax _softmax _softmax_backward_data log_softmax _log_softmax "
      "_log_softmax_backward_data logsumexp nll_loss nll_loss_nd nll_loss_forward "
      "cross_entropy_loss");
  add(WorkClass::kCopy,
      "copy _to_copy to contiguous clone cat stack fill zero zeros zeros_like ones ones_like "
      "full full_like index_select gather scatter embedding index index_put _index_put_impl "
      "masked_select repeat repeat_interleave scalar_tensor arange new_zeros select_backward "
      "slice_backward _foreach_copy _foreach_zero eye roll flip constant_pad_nd");
  add(WorkClass::kReduction,
      "sum mean norm linalg_vector_norm var std var_mean max min amax amin aminmax all any "
      "argmax argmin cumsum sort topk prod embedding_dense _foreach_norm native_layer_norm "
      "_fused_rms_norm layer_norm scatter_add index_add count_nonzero unique");
  add(WorkClass::kElementwise,
      "add sub rsub mul div pow sqrt rsqrt exp exp2 log log2 neg square reciprocal silu sigmoid "
      "tanh relu gelu where masked_fill clamp clamp_min clamp_max lt gt eq ne ge le logical_and "
      "logical_or logical_not bitwise_and bitwise_or bitwise_not isfinite isnan isinf abs sign "
      "maximum minimum triu tril cos sin lerp addcmul addcdiv threshold dropout native_dropout "
      "randn randint normal uniform floor round remainder _fused_adamw _fused_adam "
      "_amp_foreach_non_finite_check_and_unscale _amp_update_scale");
  // Ours, as Python calls them.
  add(WorkClass::kSoftmax, "cross_entropy cross_entropy_forward linear_cross_entropy");
  add(WorkClass::kReduction, "rms_norm rms_norm_forward grad_norm");
  add(WorkClass::kElementwise, "swiglu swiglu_forward rope rope_rows adamw clip_to_norm");
  add(WorkClass::kHost,
      "view reshape _reshape_alias _unsafe_view transpose t permute expand expand_as as_strided "
      "select slice narrow unsqueeze squeeze detach alias empty empty_like empty_strided "
      "new_empty new_empty_strided resize set resolve_conj resolve_neg item _local_scalar_dense "
      "is_nonzero unbind split split_with_sizes chunk flatten unflatten view_as lift_fresh "
      "result_type numpy_t movedim unfold type_as requires_grad numel size");
  return classes;
}

// "add_" -> "add", "silu_backward" -> "silu".
std::string_view stem_of(std::string_view name) {
  for (const std::string_view end : {"_backward", "_"}) {
    if (name.size() > end.size() && name.ends_with(end)) name.remove_suffix(end.size());
  }
  return name;
}

double elements(const Operand& operand) {
  return std::accumulate(
      operand.shape.begin(), operand.shape.end(), 1.0,
      [](double product, int64_t n) { return product * static_cast<double>(n); });
}

double bytes_of(const Operand& operand) {
  return operand.element_bytes == 0
             ? 0
             : elements(operand) * static_cast<double>(operand.element_bytes);
}

double all_bytes(std::span<const Operand> operands) {
  return std::accumulate(operands.begin(), operands.end(), 0.0,
                         [](double sum, const Operand& o) { return sum + bytes_of(o); });
}

std::vector<Operand> tensors_among(std::span<const Operand> operands) {
  std::vector<Operand> tensors;
  std::copy_if(operands.begin(), operands.end(), std::back_inserter(tensors),
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

// The last two tensors that are matrices, or stacks of them: (..., m, k) and (..., k, n).
OperatorWork product(const std::vector<Operand>& tensors) {
  const Operand *a = nullptr, *b = nullptr;
  for (const Operand& tensor : tensors) {
    if (tensor.shape.size() < 2) continue;
    a = b;
    b = &tensor;
  }
  if (a == nullptr || a->shape.size() != b->shape.size()) return {};
  const auto& left = a->shape;
  if (left.back() != b->shape[b->shape.size() - 2]) return {};
  const double columns = static_cast<double>(b->shape.back());
  const double result = elements(*a) / std::max(1.0, static_cast<double>(left.back())) * columns;
  return {2 * elements(*a) * columns,
          bytes_of(*a) + bytes_of(*b) + result * static_cast<double>(a->element_bytes)};
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

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// "aten::mm" -> "mm".
std::string_view last_name(std::string_view name) {
  const size_t colons = name.rfind("::");
  return colons == name.npos ? name : name.substr(colons + 2);
}

// Operators that compute nothing themselves: what they call is recorded too.
bool only_calls(std::string_view stem) {
  static constexpr auto kNames = std::to_array<std::string_view>({"matmul",
                                                                  "linear",
                                                                  "einsum",
                                                                  "to",
                                                                  "_to_copy",
                                                                  "contiguous",
                                                                  "clone",
                                                                  "zeros",
                                                                  "zeros_like",
                                                                  "ones",
                                                                  "ones_like",
                                                                  "full",
                                                                  "full_like",
                                                                  "repeat",
                                                                  "repeat_interleave",
                                                                  "stack",
                                                                  "softmax",
                                                                  "log_softmax",
                                                                  "cross_entropy_loss",
                                                                  "nll_loss",
                                                                  "nll_loss_nd",
                                                                  "new_zeros",
                                                                  "select_backward",
                                                                  "slice_backward",
                                                                  "scalar_tensor",
                                                                  "layer_norm"});
  return is_one_of(stem, kNames);
}

}  // namespace

WorkClass class_of_operator(std::string_view name) {
  if (name.starts_with("autograd::")) return WorkClass::kHost;
  for (const NodeRule& rule : kNodeRules) {
    if (contains(name, rule.part)) return rule.work_class;
  }
  if (contains(name, "attention")) return WorkClass::kAttention;
  if (name.starts_with("gloo:") || name.starts_with("nccl") || name.starts_with("c10d::")) {
    return WorkClass::kCommunication;
  }
  if (contains(name, "Backward") || contains(name, "torch::autograd::")) return WorkClass::kHost;
  static const OperatorClasses classes = make_operator_classes();
  const size_t colons = name.rfind("::");
  if (colons != name.npos) name.remove_prefix(colons + 2);
  for (const std::string_view known_by : {name, stem_of(name)}) {
    const auto known = classes.find(known_by);
    if (known != classes.end()) return known->second;
  }
  return name.starts_with("_foreach_") ? WorkClass::kElementwise : WorkClass::kOther;
}

int64_t profiled_element_bytes(std::string_view dtype) {
  struct Known {
    std::string_view name;
    int64_t bytes;
  };
  static constexpr auto kKnown = std::to_array<Known>({{"float", 4},
                                                       {"c10::BFloat16", 2},
                                                       {"c10::Half", 2},
                                                       {"TensorList", 4},
                                                       {"double", 8},
                                                       {"long int", 8},
                                                       {"long", 8},
                                                       {"int", 4},
                                                       {"bool", 1},
                                                       {"unsigned char", 1},
                                                       {"signed char", 1},
                                                       {"short int", 2}});
  for (const Known& known : kKnown) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

bool operator_works(std::string_view name) {
  const WorkClass work_class = class_of_operator(name);
  return work_class != WorkClass::kHost && work_class != WorkClass::kOther &&
         !only_calls(last_name(name));
}

OperatorWork operator_work(std::string_view name, std::span<const Operand> operands) {
  if (!operator_works(name)) return {};
  const std::string_view stem = last_name(name);
  const WorkClass work_class = class_of_operator(name);
  std::vector<Operand> tensors = tensors_among(operands);
  if (work_class == WorkClass::kMatmul) return product(tensors);
  if (work_class == WorkClass::kAttention) return fused_attention(name, std::move(tensors));
  const double read = all_bytes(tensors);
  if (work_class == WorkClass::kReduction) return {0, read};
  if (stem == "embedding" && tensors.size() == 2 && tensors[0].shape.size() == 2) {
    const double row = static_cast<double>(tensors[0].shape[1] * tensors[0].element_bytes);
    return {0, bytes_of(tensors[1]) + 2 * elements(tensors[1]) * row};
  }
  if (stem == "copy_" || stem == "fill_" || stem == "zero_") return {0, read};
  if (stem == "cat") return {0, 2 * read};
  if (stem == "_fused_adamw_")
    return {0, read * 7 / 4};  // four lists read, all but gradients written
  if (stem.ends_with("_") && !tensors.empty()) return {0, read + bytes_of(tensors.front())};
  return {0, read + broadcast_bytes(tensors)};
}

}  // namespace flashstep::tools
