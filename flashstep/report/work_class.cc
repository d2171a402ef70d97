#include "flashstep/report/work_class.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <unordered_map>

#include "flashstep/base/text.h"

namespace flashstep::report {
namespace {

struct Rule {
  const char* part;  // in lower case, anywhere in the name
  WorkClass work_class;
};

// The first that fits wins. Names are those that cuBLAS and cuDNN 13.0 / 9.19, PyTorch 2.11, Triton
// and this library give their kernels.
constexpr Rule kKernelRules[] = {
    {"nccl", WorkClass::kCommunication},
    {"nvshmem", WorkClass::kCommunication},
    {"memcpy", WorkClass::kCopy},
    {"memset", WorkClass::kCopy},
    // Ours; PyTorch's FlashAttention; its memory-efficient kernels; cuDNN's and their helpers.
    {"attention", WorkClass::kAttention},
    {"flash_fwd", WorkClass::kAttention},
    {"flash_bwd", WorkClass::kAttention},
    {"flash::", WorkClass::kAttention},
    {"fmha", WorkClass::kAttention},
    {"sdpa", WorkClass::kAttention},
    {"dot_do_o", WorkClass::kAttention},
    {"convert_dq", WorkClass::kAttention},
    {"softmax", WorkClass::kSoftmax},
    {"nll_loss", WorkClass::kSoftmax},
    {"cross_entropy", WorkClass::kSoftmax},
    // cuBLAS: nvjet (Hopper and later), xmma and CUTLASS tiles, vectors, and what adds up split
    // sums.
    {"nvjet", WorkClass::kMatmul},
    {"gemm", WorkClass::kMatmul},
    {"cutlass", WorkClass::kMatmul},
    {"splitkreduce", WorkClass::kMatmul},
    {"gemv", WorkClass::kMatmul},
    {"cublas", WorkClass::kMatmul},
    {"dot_kernel", WorkClass::kMatmul},
    {"convolve", WorkClass::kMatmul},
    {"xmma", WorkClass::kMatmul},
    {"triton_tem", WorkClass::kMatmul},
    // Of PyTorch's element-wise kernels those whose functor only moves; before "elementwise".
    {"copy_kernel", WorkClass::kCopy},
    {"copyfunctor", WorkClass::kCopy},
    {"catarray", WorkClass::kCopy},
    {"fillfunctor", WorkClass::kCopy},
    {"index_elementwise", WorkClass::kCopy},
    {"index_kernel", WorkClass::kCopy},
    {"indexselect", WorkClass::kCopy},
    {"gather", WorkClass::kCopy},
    {"scatter_kernel", WorkClass::kCopy},
    {"nchwtonhwc", WorkClass::kCopy},
    {"nhwctonchw", WorkClass::kCopy},
    {"measure::read_kernel", WorkClass::kCopy},
    {"lpnorm", WorkClass::kReduction},  // a multi_tensor_apply_kernel too
    {"reduce", WorkClass::kReduction},
    {"norm_kernel", WorkClass::kReduction},
    {"layernorm", WorkClass::kReduction},
    {"layer_norm", WorkClass::kReduction},
    {"rmsnorm", WorkClass::kReduction},
    {"rms_norm", WorkClass::kReduction},
    {"rowwisemoments", WorkClass::kReduction},
    {"gammabeta", WorkClass::kReduction},
    {"triton_red", WorkClass::kReduction},
    {"triton_per", WorkClass::kReduction},
    {"cub::", WorkClass::kReduction},
    {"cub_", WorkClass::kReduction},
    {"scan", WorkClass::kReduction},
    {"sort", WorkClass::kReduction},
    {"topk", WorkClass::kReduction},
    // The gradient of an embedding: rows of equal tokens are sorted together and added up.
    {"embedding_backward", WorkClass::kReduction},
    {"indexing_backward", WorkClass::kReduction},
    {"compute_grad_weight", WorkClass::kReduction},
    {"partial_segment", WorkClass::kReduction},
    {"num_of_segments", WorkClass::kReduction},
    {"sum_and_scatter", WorkClass::kReduction},
    {"elementwise", WorkClass::kElementwise},
    {"multi_tensor_apply", WorkClass::kElementwise},
    {"triton_poi", WorkClass::kElementwise},
    {"pointwise", WorkClass::kElementwise},
    {"triu_tril", WorkClass::kElementwise},
    {"dropout", WorkClass::kElementwise},
    {"parallel_for", WorkClass::kElementwise},
    {"swiglu", WorkClass::kElementwise},
    {"rope", WorkClass::kElementwise},
    {"adamw", WorkClass::kElementwise},
};

// Functions of ours that the dispatcher does not see, by their nodes in the backward pass.
constexpr Rule kNodeRules[] = {
    {"FusedRmsNorm", WorkClass::kReduction},
    {"FusedSwiglu", WorkClass::kElementwise},
    {"FusedCrossEntropy", WorkClass::kSoftmax},
    {"FusedRope", WorkClass::kElementwise},
};

constexpr Rule kRangeRules[] = {
    {"norm", WorkClass::kReduction},        {"swiglu", WorkClass::kElementwise},
    {"rope", WorkClass::kElementwise},      {"loss", WorkClass::kSoftmax},
    {"optimizer", WorkClass::kElementwise},
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

using OperatorClasses = std::unordered_map<std::string_view, WorkClass>;

// PyTorch's operators by name, without "aten::", the "_" of those in place, and "_backward".
OperatorClasses make_operator_classes() {
  OperatorClasses classes;
  const auto add = [&](WorkClass work_class, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) classes.emplace(name, work_class);
  };
  add(WorkClass::kMatmul, {"mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "dot",
                           "mv", "addmv", "_scaled_mm", "einsum", "convolution", "conv1d", "conv2d",
                           "_convolution", "mkldnn_linear", "mkldnn_convolution"});
  add(WorkClass::kSoftmax, {"softmax", "_softmax", "_softmax_backward_data", "log_softmax",
                            "_log_softmax", "_log_softmax_backward_data", "logsumexp", "nll_loss",
                            "nll_loss_nd", "nll_loss_forward", "cross_entropy_loss"});
  add(WorkClass::kCopy, {"copy",
                         "_to_copy",
                         "to",
                         "contiguous",
                         "clone",
                         "cat",
                         "stack",
                         "fill",
                         "zero",
                         "zeros",
                         "zeros_like",
                         "ones",
                         "ones_like",
                         "full",
                         "full_like",
                         "index_select",
                         "gather",
                         "scatter",
                         "embedding",
                         "index",
                         "index_put",
                         "_index_put_impl",
                         "masked_select",
                         "repeat",
                         "repeat_interleave",
                         "scalar_tensor",
                         "arange",
                         "new_zeros",
                         "select_backward",
                         "slice_backward",
                         "_foreach_copy",
                         "_foreach_zero",
                         "eye",
                         "roll",
                         "flip",
                         "constant_pad_nd"});
  add(WorkClass::kReduction, {"sum",
                              "mean",
                              "norm",
                              "linalg_vector_norm",
                              "var",
                              "std",
                              "var_mean",
                              "max",
                              "min",
                              "amax",
                              "amin",
                              "aminmax",
                              "all",
                              "any",
                              "argmax",
                              "argmin",
                              "cumsum",
                              "sort",
                              "topk",
                              "prod",
                              "embedding_dense",
                              "_foreach_norm",
                              "native_layer_norm",
                              "_fused_rms_norm",
                              "layer_norm",
                              "scatter_add",
                              "index_add",
                              "count_nonzero",
                              "unique"});
  add(WorkClass::kElementwise, {"add",
                                "sub",
                                "rsub",
                                "mul",
                                "div",
                                "pow",
                                "sqrt",
                                "rsqrt",
                                "exp",
                                "exp2",
                                "log",
                                "log2",
                                "neg",
                                "square",
                                "reciprocal",
                                "silu",
                                "sigmoid",
                                "tanh",
                                "relu",
                                "gelu",
                                "where",
                                "masked_fill",
                                "clamp",
                                "clamp_min",
                                "clamp_max",
                                "lt",
                                "gt",
                                "eq",
                                "ne",
                                "ge",
                                "le",
                                "logical_and",
                                "logical_or",
                                "logical_not",
                                "bitwise_and",
                                "bitwise_or",
                                "bitwise_not",
                                "isfinite",
                                "isnan",
                                "isinf",
                                "abs",
                                "sign",
                                "maximum",
                                "minimum",
                                "triu",
                                "tril",
                                "cos",
                                "sin",
                                "lerp",
                                "addcmul",
                                "addcdiv",
                                "threshold",
                                "dropout",
                                "native_dropout",
                                "randn",
                                "randint",
                                "normal",
                                "uniform",
                                "floor",
                                "round",
                                "remainder",
                                "_fused_adamw",
                                "_fused_adam",
                                "_amp_foreach_non_finite_check_and_unscale",
                                "_amp_update_scale"});
  add(WorkClass::kHost, {"view",
                         "reshape",
                         "_reshape_alias",
                         "_unsafe_view",
                         "transpose",
                         "t",
                         "permute",
                         "expand",
                         "expand_as",
                         "as_strided",
                         "select",
                         "slice",
                         "narrow",
                         "unsqueeze",
                         "squeeze",
                         "detach",
                         "alias",
                         "empty",
                         "empty_like",
                         "empty_strided",
                         "new_empty",
                         "new_empty_strided",
                         "resize",
                         "set",
                         "resolve_conj",
                         "resolve_neg",
                         "item",
                         "_local_scalar_dense",
                         "is_nonzero",
                         "unbind",
                         "split",
                         "split_with_sizes",
                         "chunk",
                         "flatten",
                         "unflatten",
                         "view_as",
                         "lift_fresh",
                         "result_type",
                         "numpy_t",
                         "movedim",
                         "unfold",
                         "type_as",
                         "requires_grad",
                         "numel",
                         "size"});
  return classes;
}

// "aten::add_" -> "add", "aten::silu_backward" -> "silu"; a view of `name`.
std::string_view operator_stem(std::string_view name) {
  const size_t colons = name.rfind("::");
  if (colons != std::string_view::npos) name.remove_prefix(colons + 2);
  for (const std::string_view end : {"_backward", "_"}) {
    if (name.size() > end.size() && name.ends_with(end)) name.remove_suffix(end.size());
  }
  return name;
}

// Where the part of `name` that starts at `open` with one of ( < ends; the end if it does not.
size_t closing(std::string_view name, size_t open) {
  int depth = 0;
  for (size_t i = open; i < name.size(); ++i) {
    if (name[i] == '(' || name[i] == '<') ++depth;
    if (name[i] == ')' || (name[i] == '>' && name[i - 1] != '-')) --depth;
    if (depth == 0) return i;
  }
  return name.size();
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The functor among the template arguments of an element-wise kernel: the first name of at::native
// that is no wrapper around it.
std::string functor_of(std::string_view arguments) {
  constexpr std::string_view kPrefix = "at::native::", kAnonymous = "(anonymous namespace)::";
  constexpr std::array<std::string_view, 4> kWrappers = {"gpu_kernel_impl", "TensorList",
                                                         "FusedOptimizerTensorList", "Unary"};
  for (size_t at = arguments.find(kPrefix); at != arguments.npos;
       at = arguments.find(kPrefix, at + 1)) {
    std::string_view rest = arguments.substr(at + kPrefix.size());
    if (rest.starts_with(kAnonymous)) rest.remove_prefix(kAnonymous.size());
    size_t length = 0;
    while (length < rest.size() && is_word(rest[length])) ++length;
    const std::string_view word = rest.substr(0, length);
    const bool wraps = std::any_of(kWrappers.begin(), kWrappers.end(), [&](std::string_view w) {
      return w == "Unary" ? contains(word, "UnaryFunctor") : word.starts_with(w);
    });
    if (!word.empty() && !wraps) return std::string(word);
  }
  return "";
}

}  // namespace

const char* class_name(WorkClass work_class) {
  static constexpr std::array<const char*, kWorkClasses> kNames = {
      "matmul", "attention",     "softmax", "element-wise", "reduction",
      "copy",   "communication", "host",    "unclassified"};
  return kNames[static_cast<size_t>(work_class)];
}

WorkClass class_of_kernel(std::string_view name) {
  const std::string lowered = lower(name);
  for (const Rule& rule : kKernelRules) {
    if (contains(lowered, rule.part)) return rule.work_class;
  }
  return WorkClass::kOther;
}

WorkClass class_of_operator(std::string_view name) {
  if (name.starts_with("autograd::")) return WorkClass::kHost;
  for (const Rule& rule : kNodeRules) {
    if (contains(name, rule.part)) return rule.work_class;
  }
  if (contains(name, "attention")) return WorkClass::kAttention;
  if (name.starts_with("gloo:") || name.starts_with("nccl") || name.starts_with("c10d::")) {
    return WorkClass::kCommunication;
  }
  if (contains(name, "Backward") || contains(name, "torch::autograd::")) return WorkClass::kHost;
  static const OperatorClasses classes = make_operator_classes();
  const std::string_view stem = operator_stem(name);
  const auto known = classes.find(stem);
  if (known != classes.end()) return known->second;
  return stem.starts_with("_foreach_") ? WorkClass::kElementwise : WorkClass::kOther;
}

WorkClass class_of_range(std::string_view name) {
  for (const Rule& rule : kRangeRules) {
    if (name == rule.part) return rule.work_class;
  }
  return WorkClass::kHost;
}

std::string short_kernel_name(std::string_view name) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  std::string base;
  std::string_view arguments;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool anonymous = name.substr(i).starts_with("(anonymous namespace)");
    if (name[i] == '(' && !anonymous) break;
    if (anonymous || name[i] == '<') {
      const size_t end = closing(name, i);
      if (!anonymous) arguments = name.substr(i + 1, end - i - 1);
      i = end;
    } else {
      base += name[i];
    }
  }
  const size_t colons = base.rfind("::");
  if (colons != base.npos && colons + 2 < base.size()) base = base.substr(colons + 2);
  if (name.starts_with("Memcpy") || name.starts_with("Memset")) return std::string(name);
  const bool generic = contains(base, "elementwise") || contains(base, "multi_tensor_apply");
  const std::string functor = generic ? functor_of(arguments) : "";
  return functor.empty() ? base : str(base, " (", functor, ")");
}

}  // namespace flashstep::report
