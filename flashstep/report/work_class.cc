#include "flashstep/report/work_class.h"

#include <array>
#include <cctype>

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

}  // namespace flashstep::report
