// Accounts of a pass through a model, and of one of its blocks.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "flashstep/attention/cost.h"
#include "flashstep/bench/workload.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/profile/account.h"
#include "flashstep/profile/account_table.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

// The model and pass that an account is of.
struct AccountCase {
  ModelConfig model;
  PassShape shape;
  bool backward = false, update = false;
};

AccountCase account_case(const StepAccount& inputs) {
  check_one_of("mode", inputs.mode, workload_modes());
  check_one_of("precision", inputs.precision, {"fp32", "bf16"});
  check_one_of("attention", inputs.attention, {"kernel", "naive"});
  check_one_of("device", inputs.device, {"cpu", "cuda"});
  require(inputs.batch_size >= 1, "[account] expected a batch of 1 row or more, got ",
          inputs.batch_size);
  AccountCase c;
  c.model = resolved(inputs.model);
  c.shape = {.batch_size = inputs.batch_size,
             .seq_len = c.model.context_length,
             .bf16 = inputs.precision == "bf16",
             .naive_attention = inputs.attention == "naive",
             .on_gpu = inputs.device == "cuda"};
  c.backward = inputs.mode != "forward";
  c.update = inputs.mode == "step";
  return c;
}

// "xl, batch 4, ..."
std::string case_name(const StepAccount& inputs, const AccountCase& c) {
  return str(model_name(c.model), ", batch ", with_commas(c.shape.batch_size), ", context ",
             with_commas(c.shape.seq_len), ", ", inputs.precision, ", attention ",
             inputs.attention);
}

// What the letters of a derivation stand for.
std::string letters_of(const AccountCase& c) {
  const ModelConfig& m = c.model;
  return str("Letters: V = ", with_commas(m.vocab_size),
             " tokens in the vocabulary, C = ", with_commas(m.d_model),
             " wide, F = ", with_commas(m.d_ff), " inside, L = ", m.num_layers,
             " blocks, H = ", m.num_heads, " heads",
             m.kv_heads() == m.num_heads ? "" : str(", K = ", m.kv_width(), " wide keys"),
             "; B = ", c.shape.batch_size, " rows of N = ", with_commas(c.shape.seq_len),
             " tokens, T = B N = ", with_commas(c.shape.batch_size * c.shape.seq_len), ".");
}

// The weights of attention's four projections.
std::string projections_of(const ModelConfig& m) {
  return m.kv_heads() == m.num_heads ? "4 C^2" : "2 C (C + K)";
}

double sum(const std::vector<SavedTensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), 0.0,
                         [](double bytes, const SavedTensor& t) { return bytes + t.bytes; });
}

void add_parameters(const AccountCase& c, measure::Table& table) {
  const ParameterCounts counts = parameter_counts(c.model);
  const ModelConfig& m = c.model;
  table.add_row({"parameters", counts.total(), ""});
  table.add_row({"  embedding and head", counts.embedding + counts.head, ""});
  table.add_row({"  attention", counts.attention, ""});
  table.add_row({"  feed-forward", counts.feed_forward, ""});
  table.add_row({"  norms", counts.norms, ""});
  derive(table, "parameters = ", m.tie_embeddings ? "" : "2 ", "V C + L (", projections_of(m),
         " + 3 C F + 2 C) + C = ", with_commas(counts.embedding + counts.head), " + ", m.num_layers,
         " x ", with_commas(block_parameter_count(m)), " + ", with_commas(m.d_model), " = ",
         with_commas(counts.total()));
}

void add_flops(const AccountCase& c, measure::Table& table) {
  const auto rows = static_cast<double>(c.shape.batch_size);
  const ForwardFlops one = forward_flops(c.model, c.shape.seq_len);
  const double forward = rows * one.total();
  const double step = step_flops(c.model, c.shape.batch_size, c.shape.seq_len);
  std::vector<std::pair<const char*, double>> parts = {{"FLOPs forward", forward},
                                                       {"  projections", rows * one.linear},
                                                       {"  attention", rows * one.attention},
                                                       {"  head", rows * one.head}};
  if (c.backward)
    parts.insert(parts.end(), {{"FLOPs backward", step - forward}, {"FLOPs in all", step}});
  for (const auto& [name, flops] : parts) table.add_row({name, flops / 1e12, "TFLOP"});
  const auto tokens = rows * static_cast<double>(c.shape.seq_len);
  const bool has_window = c.model.window > 0 && c.model.window < c.shape.seq_len;
  const std::string w = std::to_string(c.model.window);
  const std::string pairs =
      has_window ? str("(N (N + 1) - (N - ", w, ") (N - ", w, " + 1)) / 2") : "N (N + 1) / 2";
  table.add_row({"FLOPs a token", (c.backward ? step : forward) / tokens / 1e9, "GFLOP"});
  derive(table, "FLOPs forward = 2 T L (", projections_of(c.model), " + 3 C F) + 4 B L C ", pairs,
         " + 2 T C V = ", number(rows * one.linear / 1e12), " + ",
         number(rows * one.attention / 1e12), " + ", number(rows * one.head / 1e12), " = ",
         number(forward / 1e12),
         " TFLOP: two for each multiplication and addition of the matrix products; attention "
         "takes the ",
         pairs, " pairs that the mask leaves",
         c.model.document_end >= 0 ? ", as if a row were one document" : "");
  if (c.backward) {
    derive(table,
           "FLOPs backward = 2 x forward (a product for the input's gradient, one for the "
           "weight's) = ",
           number((step - forward) / 1e12), " TFLOP");
  }
}

void add_state(const AccountCase& c, measure::Table& table) {
  const auto parameters = static_cast<double>(parameter_count(c.model));
  const StateBytes state = state_bytes(parameters);
  table.add_row({"memory: parameters", state.parameters / kGiB, "GiB"});
  if (c.backward) table.add_row({"memory: gradients", state.gradients / kGiB, "GiB"});
  if (c.update) {
    table.add_row({"memory: AdamW's moments", state.optimizer / kGiB, "GiB"});
    table.add_row({"update: least memory traffic", update_traffic_bytes(parameters) / kGB, "GB"});
    derive(table, "state = (4 + 4 + 8) bytes a parameter (float32, gradient, two moments) = ",
           number(state.total() / kGiB),
           " GiB; an update reads all four numbers and writes three: ",
           number(update_traffic_bytes(parameters) / kGB), " GB");
  }
}

void add_activations(const AccountCase& c, measure::Table& table) {
  const double stream = residual_stream_bytes(c.model, c.shape);
  table.add_row({"one tensor of the residual stream", stream / kMiB, "MiB"});
  derive(table, "residual stream = 4 bytes x B N C = 4 x ", with_commas(c.shape.batch_size), " x ",
         with_commas(c.shape.seq_len), " x ", with_commas(c.model.d_model), " = ",
         number(stream / kMiB), " MiB");
  const StateBytes state = state_bytes(static_cast<double>(parameter_count(c.model)));
  if (!c.backward) {
    const double temporaries = forward_temporaries_bytes(c.model, c.shape);
    table.add_row({"memory: temporaries, at least", temporaries / kGiB, "GiB"});
    table.add_row({"memory: peak, at least", (state.parameters + temporaries) / kGiB, "GiB"});
    derive(table, "peak = parameters + the largest temporaries of one operation after the other = ",
           number(state.parameters / kGiB), " + ", number(temporaries / kGiB), " GiB");
    return;
  }
  const double block = block_saved_bytes(c.model, c.shape);
  const double around = sum(head_saved_tensors(c.model, c.shape));
  const double kept = static_cast<double>(c.model.num_layers) * block + around;
  table.add_row({"kept for backward by one block", block / kMiB, "MiB"});
  table.add_row({"kept for backward in all", kept / kGiB, "GiB"});
  const double lasting = state.parameters + (c.update ? state.optimizer : 0);
  const double after_forward = lasting + kept, after_backward = lasting + state.gradients;
  table.add_row({"memory after forward, at least", after_forward / kGiB, "GiB"});
  table.add_row({"memory after backward, at least", after_backward / kGiB, "GiB"});
  table.add_row({"memory: peak, at least", std::max(after_forward, after_backward) / kGiB, "GiB"});
  derive(table, "kept = L x one block + the head's = ", c.model.num_layers, " x ",
         number(block / kMiB), " + ", number(around / kMiB), " MiB = ", number(kept / kGiB),
         " GiB (account block lists one block's tensors)");
  derive(table, "peak = ", c.update ? "parameters + moments" : "parameters",
         " + max(kept, gradients): gradients come as fast as activations go, block by block, so "
         "that the peak is at one end of backward = ",
         number(lasting / kGiB), " + max(", number(kept / kGiB), ", ",
         number(state.gradients / kGiB), ") GiB, temporaries left out");
}

// Account of attention's memory by the formula.
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

void derive_attention(const AttentionSize& size, const Memory& memory, int64_t element_bytes,
                      bool fits, measure::Table& table) {
  derive(table, fits ? "Largest case" : "First case that does not fit", ", N ", with_commas(size.n),
         ", D ", size.head_dim, ": one matrix = B H N^2 x ", element_bytes,
         " bytes = ", size.batches, " x ", size.heads, " x ", with_commas(size.n), "^2 x ",
         element_bytes, " = ", number(memory.matrix / kGiB), " GiB");
  derive(table, "kept for backward = q, k, v, output + ",
         size.causal ? "weights before and after the mask's zeros" : "the weights", " = ",
         number(memory.tensors / 2 / kGiB), " + ", number(memory.matrices.kept / kGiB), " GiB");
  derive(table,
         "peak in backward = those and their four gradients + weights, their gradient and that of "
         "the scores (3 matrices) = ",
         number(memory.tensors / kGiB), " + ", number(memory.matrices.backward_peak / kGiB), " = ",
         number(memory.peak / kGiB), " GiB");
  derive(
      table,
      "Doubling N multiplies the matrices by four and everything else by two. A kernel that goes "
      "through the keys in tiles keeps a logsumexp a row (4 bytes) and computes the weights anew "
      "in backward: no N^2 is left.");
}

void check(const AttentionAccount& inputs) {
  check_one_of("precision", inputs.precision, {"fp32", "bf16"});
  require(inputs.batch_size >= 1 && inputs.heads >= 1 && !inputs.contexts.empty() &&
              !inputs.head_dims.empty() && inputs.memory_gb > 0,
          "[account] expected a batch, heads, contexts, head dims and memory above 0");
  for (const auto* list : {&inputs.contexts, &inputs.head_dims}) {
    for (const int64_t value : *list)
      require(value >= 1, "[account] expected contexts and head dims of 1 or more, got ", value);
  }
  // The largest products that are computed in whole numbers.
  const auto largest = [](const std::vector<int64_t>& values) {
    return static_cast<double>(std::ranges::max(values));
  };
  const double n = largest(inputs.contexts);
  counted(n * std::max(n, largest(inputs.head_dims)), "elements of a matrix");
  counted(4 * static_cast<double>(inputs.batch_size) * static_cast<double>(inputs.heads) * n,
          "rows of attention");
}

// Account of recomputation in the stack of blocks.

// Sizes worth showing: powers of two, the best one and its neighbours.
std::set<int64_t> shown_group_sizes(int64_t blocks, int64_t best) {
  std::set<int64_t> sizes = {best - 1, best, best + 1, blocks};
  for (int64_t size = 1; size < blocks; size *= 2) sizes.insert(size);
  std::erase_if(sizes, [&](int64_t size) { return size < 1 || size > blocks; });
  return sizes;
}

}  // namespace

measure::Table account_step(const StepAccount& inputs) {
  const AccountCase c = account_case(inputs);
  measure::Table table = quantity_table(
      str("Account of one pass (", inputs.mode, "): ", case_name(inputs, c)), {letters_of(c)});
  add_parameters(c, table);
  add_flops(c, table);
  add_state(c, table);
  add_activations(c, table);
  return table;
}

measure::Table account_block(const StepAccount& inputs) {
  const AccountCase c = account_case(inputs);
  const auto tensors = block_saved_tensors(c.model, c.shape);
  const double all = sum(tensors);
  measure::Table table =
      empty_table(str("What one block keeps for backward: ", case_name(inputs, c)),
                  {measure::text_column("tensor"), measure::number_column("size", "MiB", 2),
                   measure::number_column("share", "%", 1)},
                  {letters_of(c)});
  for (const SavedTensor& tensor : tensors) {
    table.add_row({tensor.name, tensor.bytes / kMiB, 100 * tensor.bytes / all});
  }
  table.add_row({"in all", all / kMiB, 100.0});
  const double gradients = 4 * static_cast<double>(block_parameter_count(c.model));
  table.add_row({"beside it: gradients of its weights", gradients / kMiB, measure::Cell()});
  derive(table,
         "(B, N, C) in float32 is 4 T C = ", number(residual_stream_bytes(c.model, c.shape) / kMiB),
         " MiB, (B, N, F) is F / C times that; in bf16 what a matrix product reads has 2 bytes, "
         "the residual stream 4");
  derive(table, "gradients = 4 (", projections_of(c.model),
         " + 3 C F + 2 C) = ", number(gradients / kMiB), " MiB");
  if (c.shape.on_gpu && c.shape.bf16) {
    derive(table,
           "On a GPU the gated values are made again in backward, and copies of weights stay from "
           "step to step.");
  }
  return table;
}

measure::Table account_attention(const AttentionAccount& inputs) {
  check(inputs);
  const int64_t element_bytes = inputs.precision == "bf16" ? 2 : 4;
  measure::Table table = empty_table(
      str("Memory of attention by the formula: batch ", with_commas(inputs.batch_size), ", heads ",
          with_commas(inputs.heads), ", ", inputs.precision, inputs.causal ? ", causal" : ""),
      {measure::integer_column("N"), measure::integer_column("D"), significant("one matrix", "MiB"),
       significant("before backward", "MiB"), significant("peak", "MiB"),
       measure::text_column(str("fits in ", inputs.memory_gb, " GB")),
       significant("kernel's peak", "MiB"), measure::number_column("saved", "x", 1)});
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
      const bool is_told = !fits || !told || memory.peak >= told->second.peak;
      if (all_fit && is_told) told = {size, memory};
      all_fit = all_fit && fits;
      table.add_row({n, head_dim, memory.matrix / kMiB, memory.before_backward / kMiB,
                     memory.peak / kMiB, fits ? "yes" : "no", memory.kernel_peak / kMiB,
                     memory.peak / memory.kernel_peak});
    }
  }
  derive_attention(told->first, told->second, element_bytes, all_fit, table);
  return table;
}

measure::Table account_recompute(const RecomputeAccount& inputs) {
  const AccountCase c = account_case(inputs.step);
  require(inputs.saved_mib >= 0 && inputs.boundary_mib >= 0,
          "[account] expected sizes of 0 MiB or more, got ", inputs.saved_mib, " and ",
          inputs.boundary_mib);
  const BlockStack stack{.blocks = c.model.num_layers,
                         .boundary_bytes = inputs.boundary_mib > 0
                                               ? inputs.boundary_mib * kMiB
                                               : residual_stream_bytes(c.model, c.shape),
                         .saved_bytes = inputs.saved_mib > 0 ? inputs.saved_mib * kMiB
                                                             : block_saved_bytes(c.model, c.shape)};
  measure::Table table =
      empty_table(str("Recomputation of activations: ", case_name(inputs.step, c)),
                  {measure::text_column("scheme"), measure::integer_column("inputs kept"),
                   measure::integer_column("blocks kept"), measure::number_column("peak", "GiB", 2),
                   measure::integer_column("block passes"), measure::number_column("step", "x", 2)},
                  {letters_of(c)});
  const auto n = static_cast<double>(stack.blocks);
  const auto add = [&](const std::string& name, const RecomputeCost& cost) {
    table.add_row({name, static_cast<int64_t>(cost.boundaries),
                   static_cast<int64_t>(cost.saved_blocks), cost.peak_bytes / kGiB,
                   static_cast<int64_t>(cost.block_forwards),
                   (cost.block_forwards + 2 * n) / (3 * n)});
  };
  add("keep everything", keep_everything(stack));
  const int64_t best = best_group_size(stack);
  for (const int64_t size : shown_group_sizes(stack.blocks, best)) {
    add(str("groups of ", size, size == best ? " (best)" : ""), recompute_groups(stack, size));
  }
  const RecomputeCost halves = recompute_halves(stack);
  add("halves of halves", halves);
  // Optimal with as many inputs as halves keep, and with fewer: what the passes buy.
  const bool searched = stack.blocks <= kMostSearchedBlocks;
  const int64_t fewer = searched ? static_cast<int64_t>(halves.boundaries) - 1 : 0;
  for (int64_t kept = fewer; kept >= 1; kept /= 2) {
    add(str("fewest passes, ", kept + 1, " inputs"), recompute_with(stack, kept));
  }
  add("from the start each time", recompute_from_start(stack));
  const std::string a = number(stack.boundary_bytes / kMiB), r = number(stack.saved_bytes / kMiB);
  derive(table, "A = ", a, " MiB is a block's input, R = ", r,
         " MiB all that a block keeps, its input included; n = ", stack.blocks, " blocks.");
  derive(table,
         "groups of k: peak at most (ceil(n / k) - 1) A + k R, smallest near k = sqrt(n A / R) = ",
         number(std::sqrt(n * stack.boundary_bytes / stack.saved_bytes)), ", so k = ", best,
         "; passes = 2 n");
  derive(table,
         "halves of halves: peak = ceil(log2 n) A + R = O(log n), passes about n (1 + log2 n): ",
         with_commas(static_cast<int64_t>(halves.block_forwards)));
  derive(table, "from the start each time: peak = A + R = O(1), passes = n (n + 1) / 2 = ",
         with_commas(stack.blocks * (stack.blocks + 1) / 2),
         " = O(n^2): the least memory, whatever it costs");
  derive(
      table,
      "step: passes forward and two for backward, over the three of a step that keeps everything");
  return table;
}

}  // namespace flashstep::tools
