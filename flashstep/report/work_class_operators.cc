// Classes of operators and of autograd's nodes.
#include <algorithm>
#include <unordered_map>

#include "flashstep/report/work_class.h"

namespace flashstep::report {
namespace {

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

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

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

}  // namespace flashstep::report
