#include "flashstep/trace/work_class.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "flashstep/base/text.h"

namespace flashstep::tools {
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
    {"all_reduce_kernel", WorkClass::kCommunication},  // PyTorch's own, over NVLink
    {"all_gather_kernel", WorkClass::kCommunication},
    {"memcpy ptop", WorkClass::kCommunication},  // a copy engine's, to another GPU
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
    {"chunk_cat", WorkClass::kCopy},
    {"roll_cuda", WorkClass::kCopy},
    {"take_put", WorkClass::kCopy},
    {"flip_kernel", WorkClass::kCopy},
    {"nchwtonhwc", WorkClass::kCopy},
    {"nhwctonchw", WorkClass::kCopy},
    {"measure::read_kernel", WorkClass::kCopy},
    {"square_sums", WorkClass::kReduction},  // ours, of gradients
    {"norm_of_sums", WorkClass::kReduction},
    {"lpnorm", WorkClass::kReduction},  // a multi_tensor_apply_kernel too
    {"lpmax", WorkClass::kReduction},
    {"reduce", WorkClass::kReduction},
    {"norm_kernel", WorkClass::kReduction},
    {"layernorm", WorkClass::kReduction},
    {"layer_norm", WorkClass::kReduction},
    {"batch_norm", WorkClass::kReduction},
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
    {"embedding_chunks", WorkClass::kReduction},
    {"embedding_join", WorkClass::kReduction},
    {"indexing_backward", WorkClass::kReduction},
    {"compute_grad_weight", WorkClass::kReduction},
    {"partial_segment", WorkClass::kReduction},
    {"partials_per_segment", WorkClass::kReduction},
    {"num_of_segments", WorkClass::kReduction},
    {"sum_and_scatter", WorkClass::kReduction},
    {"elementwise", WorkClass::kElementwise},
    {"multi_tensor_apply", WorkClass::kElementwise},
    {"triton_poi", WorkClass::kElementwise},
    {"pointwise", WorkClass::kElementwise},
    {"triu_tril", WorkClass::kElementwise},
    {"dropout", WorkClass::kElementwise},
    {"bernoulli", WorkClass::kElementwise},
    {"glu_backward", WorkClass::kElementwise},
    {"parallel_for", WorkClass::kElementwise},
    {"swiglu", WorkClass::kElementwise},
    {"rope", WorkClass::kElementwise},
    {"adamw", WorkClass::kElementwise},
    {"advance_steps", WorkClass::kElementwise},
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

// The innermost part of the name of the first template argument, without arguments of its own.
std::string first_name(std::string_view arguments) {
  std::string_view name = arguments.substr(0, arguments.find_first_of("<,("));
  const size_t colons = name.rfind("::");
  if (colons != name.npos) name.remove_prefix(colons + 2);
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  return std::string(name);
}

// CUTLASS launches all its kernels from these: which one runs, only the template argument says.
bool is_cutlass_launcher(std::string_view name) {
  constexpr std::array<std::string_view, 3> kLaunchers = {"cutlass::Kernel", "cutlass::Kernel2",
                                                          "cutlass::device_kernel"};
  return std::find(kLaunchers.begin(), kLaunchers.end(), name) != kLaunchers.end();
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

const char* class_name(WorkClass work_class) {
  static constexpr std::array<const char*, kWorkClasses> kNames = {
      "matmul", "attention",     "softmax", "element-wise", "reduction",
      "copy",   "communication", "host",    "unclassified"};
  return kNames[static_cast<size_t>(work_class)];
}

WorkClass class_of_kernel(std::string_view name) {
  const std::string lowered = lower(name);
  for (const Rule& rule : kKernelRules) {
    if (lowered.find(rule.part) != lowered.npos) return rule.work_class;
  }
  return WorkClass::kOther;
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
  if (is_cutlass_launcher(base)) {
    const std::string kernel = first_name(arguments);
    if (!kernel.empty()) return kernel;
  }
  const size_t colons = base.rfind("::");
  if (colons != base.npos && colons + 2 < base.size()) base = base.substr(colons + 2);
  if (name.starts_with("Memcpy") || name.starts_with("Memset")) return std::string(name);
  if (base == "CppNode") {  // a function of ours, by its node in the backward pass
    const size_t last = arguments.rfind("::");
    return str(last == arguments.npos ? arguments : arguments.substr(last + 2), " (backward)");
  }
  const bool generic = contains(base, "elementwise") || contains(base, "multi_tensor_apply");
  const std::string functor = generic ? functor_of(arguments) : "";
  return functor.empty() ? base : str(base, " (", functor, ")");
}

}  // namespace flashstep::tools
