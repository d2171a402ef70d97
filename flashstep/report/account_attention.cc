// Account of attention's memory by the formula.
#include <algorithm>
#include <optional>

#include "flashstep/attention/cost.h"
#include "flashstep/error.h"
#include "flashstep/report/account.h"
#include "flashstep/report/account_text.h"

namespace flashstep::report {
namespace {

struct Memory {        // bytes
  double tensors = 0;  // q, k, v, the output and their gradients
  double matrix = 0;   // one (B, H, N, N)
  NaiveAttentionMemory matrices;
  double before_backward = 0, peak = 0, kernel_peak = 0;
};

Memory memory_of(const AttentionSize& size, int64_t element_bytes) {
  const auto rows = static_cast<double>(size.batches * size.heads * size.n);
  Memory memory;
  memory.kernel_peak = attention_backward_bytes(size, element_bytes);  // each of its tensors once
  memory.tensors = memory.kernel_peak - 4 * rows;                      // without the logsumexp
  memory.matrix = attention_matrix_bytes(size, element_bytes);
  memory.matrices = naive_attention_memory(size, element_bytes);
  memory.before_backward = memory.tensors / 2 + memory.matrices.kept;
  memory.peak = memory.tensors + memory.matrices.backward_peak;
  return memory;
}

void derive(const AttentionSize& size, const Memory& memory, int64_t element_bytes, bool fits,
            Account& account) {
  account.derivation.push_back(
      str(fits ? "Largest case" : "First case that does not fit", ", N ", with_commas(size.n),
          ", D ", size.head_dim, ": one matrix = B H N^2 x ", element_bytes,
          " bytes = ", size.batches, " x ", size.heads, " x ", with_commas(size.n), "^2 x ",
          element_bytes, " = ", number(memory.matrix / kGiB), " GiB"));
  account.derivation.push_back(
      str("kept for backward = q, k, v, output + ",
          size.causal ? "weights before and after the mask's zeros" : "the weights", " = ",
          number(memory.tensors / 2 / kGiB), " + ", number(memory.matrices.kept / kGiB), " GiB"));
  account.derivation.push_back(
      str("peak in backward = those and their four gradients + weights, their gradient and that of "
          "the scores (3 matrices) = ",
          number(memory.tensors / kGiB), " + ", number(memory.matrices.backward_peak / kGiB), " = ",
          number(memory.peak / kGiB), " GiB"));
  account.derivation.push_back(
      "Doubling N multiplies the matrices by four and everything else by two. A kernel that goes "
      "through the keys in tiles keeps a logsumexp a row (4 bytes) and computes the weights anew "
      "in backward: no N^2 is left.");
}

void check(const AttentionAccount& inputs) {
  require(inputs.precision == "fp32" || inputs.precision == "bf16",
          "[account] expected precision to be fp32 or bf16, got \"", inputs.precision, "\"");
  require(inputs.batch_size >= 1 && inputs.heads >= 1 && !inputs.contexts.empty() &&
              !inputs.head_dims.empty() && inputs.memory_gb > 0,
          "[account] expected a batch, heads, contexts, head dims and memory above 0");
  for (const auto* list : {&inputs.contexts, &inputs.head_dims}) {
    for (const int64_t value : *list)
      require(value >= 1, "[account] expected contexts and head dims of 1 or more, got ", value);
  }
  // The largest products that are computed in whole numbers.
  const auto largest = [](const std::vector<int64_t>& values) {
    return static_cast<double>(*std::max_element(values.begin(), values.end()));
  };
  const double n = largest(inputs.contexts);
  counted(n * std::max(n, largest(inputs.head_dims)), "elements of a matrix");
  counted(4 * static_cast<double>(inputs.batch_size) * static_cast<double>(inputs.heads) * n,
          "rows of attention");
}

}  // namespace

Account account_attention(const AttentionAccount& inputs) {
  check(inputs);
  const int64_t element_bytes = inputs.precision == "bf16" ? 2 : 4;
  Account account{.name = "attention", .table = {}, .derivation = {}};
  account.table.title =
      str("Memory of attention by the formula: batch ", with_commas(inputs.batch_size), ", heads ",
          with_commas(inputs.heads), ", ", inputs.precision, inputs.causal ? ", causal" : "");
  account.table.columns = {measure::integer_column("N"),
                           measure::integer_column("D"),
                           significant_column("one matrix", "MiB", 4),
                           significant_column("before backward", "MiB", 4),
                           significant_column("peak", "MiB", 4),
                           measure::text_column(str("fits in ", inputs.memory_gb, " GB")),
                           significant_column("kernel's peak", "MiB", 4),
                           measure::number_column("saved", "x", 1)};
  std::optional<std::pair<AttentionSize, Memory>> told;
  bool all_fit = true;
  for (const int64_t n : inputs.contexts) {
    for (const int64_t head_dim : inputs.head_dims) {
      const AttentionSize size{.batches = inputs.batch_size,
                               .heads = inputs.heads,
                               .kv_heads = inputs.heads,
                               .n = n,
                               .m = n,
                               .head_dim = head_dim,
                               .causal = inputs.causal};
      const Memory memory = memory_of(size, element_bytes);
      const bool fits = memory.peak <= inputs.memory_gb * kGB;
      if (all_fit) told = {size, memory};
      all_fit = all_fit && fits;
      account.table.add_row({n, head_dim, memory.matrix / kMiB, memory.before_backward / kMiB,
                             memory.peak / kMiB, fits ? "yes" : "no", memory.kernel_peak / kMiB,
                             memory.peak / memory.kernel_peak});
    }
  }
  derive(told->first, told->second, element_bytes, all_fit, account);
  return account;
}

}  // namespace flashstep::report
