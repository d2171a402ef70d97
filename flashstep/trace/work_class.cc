#include "flashstep/trace/work_class.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <unordered_map>
#include <utility>

#include "flashstep/base/text.h"

namespace flashstep::tools {
namespace {

// Words that tell a class, with a space between two.
struct ClassWords {
  WorkClass work_class;
  std::string_view words;
};
using KnownWords = std::vector<std::pair<std::string_view, WorkClass>>;

KnownWords words_of(std::span<const ClassWords> table) {
  KnownWords known;
  for (auto [work_class, words] : table) {
    while (!words.empty()) {
      const size_t length = std::min(words.find(' '), words.size());
      known.emplace_back(words.substr(0, length), work_class);
      words.remove_prefix(std::min(length + 1, words.size()));
    }
  }
  return known;
}

// Parts of kernels' names in lower case, of which the first that fits wins. Names are those that
// cuBLAS and cuDNN 13.0 / 9.19, PyTorch 2.11, Triton and this library give their kernels.
constexpr ClassWords kKernelParts[] = {
    // The last two are PyTorch's own, over NVLink.
    {WorkClass::kCommunication, "nccl nvshmem all_reduce_kernel all_gather_kernel"},
    {WorkClass::kCopy, "memcpy memset"},
    // Ours; PyTorch's FlashAttention; its memory-efficient kernels; cuDNN's and their helpers.
    {WorkClass::kAttention, "attention flash_fwd flash_bwd flash:: fmha sdpa dot_do_o convert_dq"},
    {WorkClass::kSoftmax, "softmax nll_loss cross_entropy"},
    // cuBLAS: nvjet (Hopper and later), xmma and CUTLASS tiles, vectors, and what adds up split
    // sums.
    {WorkClass::kMatmul,
     "nvjet gemm cutlass splitkreduce gemv cublas dot_kernel convolve xmma triton_tem"},
    // Of PyTorch's element-wise kernels those whose functor only moves; before "elementwise".
    {WorkClass::kCopy,
     "copy_kernel copyfunctor catarray fillfunctor index_elementwise index_kernel indexselect "
     "gather scatter_kernel chunk_cat roll_cuda take_put flip_kernel nchwtonhwc nhwctonchw "
     "measure::read_kernel"},
    // Ours, of gradients; the norms of lists, which are a multi_tensor_apply_kernel too.
    {WorkClass::kReduction, "square_sums norm_of_sums lpnorm lpmax"},
    {WorkClass::kReduction,
     "reduce norm_kernel layernorm layer_norm batch_norm rmsnorm rms_norm rowwisemoments "
     "gammabeta triton_red triton_per cub:: cub_ scan sort topk"},
    // The gradient of an embedding: rows of equal tokens are sorted together and added up.
    {WorkClass::kReduction,
     "embedding_backward embedding_chunks embedding_join indexing_backward compute_grad_weight "
     "partial_segment partials_per_segment num_of_segments sum_and_scatter"},
    {WorkClass::kElementwise,
     "elementwise multi_tensor_apply triton_poi pointwise triu_tril dropout bernoulli "
     "glu_backward parallel_for swiglu rope to_float8 largest_kernel adamw advance_steps "
     "muon_directions "
     "muon_update"},
};

// Functions of ours that the dispatcher does not see, by their nodes in the backward pass.
constexpr ClassWords kNodeParts[] = {{WorkClass::kReduction, "FusedRmsNorm"},
                                     {WorkClass::kElementwise, "FusedSwiglu FusedRope"},
                                     {WorkClass::kSoftmax, "FusedCrossEntropy"}};

constexpr ClassWords kRanges[] = {{WorkClass::kReduction, "norm"},
                                  {WorkClass::kElementwise, "swiglu rope optimizer"},
                                  {WorkClass::kSoftmax, "loss"}};

// PyTorch's operators by name, and ours, without "aten::", the "_" of those in place, and
// "_backward".
constexpr ClassWords kOperators[] = {
    {WorkClass::kMatmul,
     "mm addmm bmm baddbmm addbmm matmul linear dot mv addmv _scaled_mm einsum convolution "
     "conv1d conv2d _convolution mkldnn_linear mkldnn_convolution"},
    {WorkClass::kSoftmax,
     "softmax _softmax _softmax_backward_data log_softmax _log_softmax "
     "_log_softmax_backward_data logsumexp nll_loss nll_loss_nd nll_loss_forward "
     "cross_entropy_loss"},
    {WorkClass::kCopy,
     "copy _to_copy to contiguous clone cat stack fill zero zeros zeros_like ones ones_like "
     "full full_like index_select gather scatter embedding index index_put _index_put_impl "
     "masked_select repeat repeat_interleave scalar_tensor arange new_zeros select_backward "
     "slice_backward _foreach_copy _foreach_zero eye roll flip constant_pad_nd"},
    {WorkClass::kReduction,
     "sum mean norm linalg_vector_norm var std var_mean max min amax amin aminmax all any "
     "argmax argmin cumsum sort topk prod embedding_dense _foreach_norm native_layer_norm "
     "_fused_rms_norm layer_norm scatter_add index_add count_nonzero unique"},
    {WorkClass::kElementwise,
     "add sub rsub mul div pow sqrt rsqrt exp exp2 log log2 neg square reciprocal silu sigmoid "
     "tanh relu gelu where masked_fill clamp clamp_min clamp_max lt gt eq ne ge le logical_and "
     "logical_or logical_not bitwise_and bitwise_or bitwise_not isfinite isnan isinf abs sign "
     "maximum minimum triu tril cos sin lerp addcmul addcdiv threshold dropout native_dropout "
     "randn randint normal uniform floor round remainder _fused_adamw _fused_adam "
     "_amp_foreach_non_finite_check_and_unscale _amp_update_scale"},
    // Ours, as Python calls them.
    {WorkClass::kSoftmax, "cross_entropy cross_entropy_forward linear_cross_entropy"},
    {WorkClass::kReduction, "rms_norm rms_norm_forward grad_norm"},
    {WorkClass::kElementwise,
     "swiglu swiglu_forward swiglu_to_float8 rope rope_rows to_float8 largest adamw muon "
     "clip_to_norm"},
    {WorkClass::kHost,
     "view reshape _reshape_alias _unsafe_view transpose t permute expand expand_as as_strided "
     "select slice narrow unsqueeze squeeze detach alias empty empty_like empty_strided "
     "new_empty new_empty_strided resize set resolve_conj resolve_neg item _local_scalar_dense "
     "is_nonzero unbind split split_with_sizes chunk flatten unflatten view_as lift_fresh "
     "result_type numpy_t movedim unfold type_as requires_grad numel size"},
};

// The class of the first of these parts in a name.
std::optional<WorkClass> class_by_part(std::string_view name, const KnownWords& parts) {
  for (const auto& [part, work_class] : parts) {
    if (contains(name, part)) return work_class;
  }
  return std::nullopt;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// "add_" -> "add", "silu_backward" -> "silu".
std::string_view stem_of(std::string_view name) {
  for (const std::string_view end : {"_backward", "_"}) {
    if (name.size() > end.size() && name.ends_with(end)) name.remove_suffix(end.size());
  }
  return name;
}

// Names of kernels as people say them.

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
  constexpr std::string_view kWrappers[] = {"gpu_kernel_impl", "TensorList", "UnaryFunctor"};
  for (size_t at = arguments.find(kPrefix); at != arguments.npos;
       at = arguments.find(kPrefix, at + 1)) {
    std::string_view rest = arguments.substr(at + kPrefix.size());
    if (rest.starts_with(kAnonymous)) rest.remove_prefix(kAnonymous.size());
    size_t length = 0;
    while (length < rest.size() && is_word(rest[length])) ++length;
    const std::string_view word = rest.substr(0, length);
    const bool wraps =
        std::ranges::any_of(kWrappers, [&](std::string_view part) { return contains(word, part); });
    if (!word.empty() && !wraps) return std::string(word);
  }
  return "";
}

// The innermost part of the name of the first template argument, without arguments of its own.
std::string first_name(std::string_view arguments) {
  std::string_view name = last_name(arguments.substr(0, arguments.find_first_of("<,(")));
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  return std::string(name);
}

// CUTLASS launches all its kernels from these: which one runs, only the template argument says.
bool is_cutlass_launcher(std::string_view name) {
  return name == "cutlass::Kernel" || name == "cutlass::Kernel2" ||
         name == "cutlass::device_kernel";
}

}  // namespace

const std::vector<WorkClass>& all_work_classes() {
  static const std::vector<WorkClass> all = [] {
    std::vector<WorkClass> classes;
    for (int i = 0; i < kWorkClasses; ++i) classes.push_back(static_cast<WorkClass>(i));
    return classes;
  }();
  return all;
}

std::string_view last_name(std::string_view name) {
  const size_t colons = name.rfind("::");
  return colons == name.npos ? name : name.substr(colons + 2);
}

const char* class_name(WorkClass work_class) {
  static constexpr std::array<const char*, kWorkClasses> kNames = {
      "matmul", "attention",     "softmax", "element-wise", "reduction",
      "copy",   "communication", "host",    "unclassified"};
  return kNames[static_cast<size_t>(work_class)];
}

WorkClass class_of_kernel(std::string_view name) {
  static const KnownWords parts = words_of(kKernelParts);
  const std::string lowered = lower(name);
  // A copy engine's, to another GPU.
  if (contains(lowered, "memcpy ptop")) return WorkClass::kCommunication;
  return class_by_part(lowered, parts).value_or(WorkClass::kOther);
}

WorkClass class_of_operator(std::string_view name) {
  static const KnownWords nodes = words_of(kNodeParts), operators = words_of(kOperators);
  static const std::unordered_map<std::string_view, WorkClass> classes(operators.begin(),
                                                                       operators.end());
  if (name.starts_with("autograd::")) return WorkClass::kHost;
  if (const auto of_node = class_by_part(name, nodes)) return *of_node;
  if (contains(name, "attention")) return WorkClass::kAttention;
  if (name.starts_with("gloo:") || name.starts_with("nccl") || name.starts_with("c10d::"))
    return WorkClass::kCommunication;
  if (contains(name, "Backward") || contains(name, "torch::autograd::")) return WorkClass::kHost;
  name = last_name(name);
  for (const std::string_view known_by : {name, stem_of(name)}) {
    const auto known = classes.find(known_by);
    if (known != classes.end()) return known->second;
  }
  return name.starts_with("_foreach_") ? WorkClass::kElementwise : WorkClass::kOther;
}

WorkClass class_of_range(std::string_view name) {
  for (const auto& [range, work_class] : words_of(kRanges)) {
    if (name == range) return work_class;
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
  if (is_cutlass_launcher(base)) {
    const std::string kernel = first_name(arguments);
    if (!kernel.empty()) return kernel;
  }
  if (const std::string_view last = last_name(base); !last.empty()) base = std::string(last);
  if (name.starts_with("Memcpy") || name.starts_with("Memset")) return std::string(name);
  if (base == "CppNode")  // a function of ours, by its node in the backward pass
    return str(last_name(arguments), " (backward)");
  const bool generic = contains(base, "elementwise") || contains(base, "multi_tensor_apply");
  const std::string functor = generic ? functor_of(arguments) : "";
  return functor.empty() ? base : str(base, " (", functor, ")");
}

}  // namespace flashstep::tools
