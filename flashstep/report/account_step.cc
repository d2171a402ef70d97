// Accounts of a pass through a model, and of one of its blocks.
#include <algorithm>

#include "flashstep/report/account_case.h"
#include "flashstep/report/account_text.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {
namespace {

double sum(const std::vector<SavedTensor>& tensors) {
  double bytes = 0;
  for (const SavedTensor& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

void add_parameters(const AccountCase& c, Account& account) {
  const ParameterCounts counts = parameter_counts(c.model);
  const ModelConfig& m = c.model;
  account.table.add_row({"parameters", counts.total(), ""});
  account.table.add_row({"  embedding and head", counts.embedding + counts.head, ""});
  account.table.add_row({"  attention", counts.attention, ""});
  account.table.add_row({"  feed-forward", counts.feed_forward, ""});
  account.table.add_row({"  norms", counts.norms, ""});
  account.derivation.push_back(str("parameters = 2 V C + L (4 C^2 + 3 C F + 2 C) + C = ",
                                   with_commas(2 * m.vocab_size * m.d_model), " + ", m.num_layers,
                                   " x ", with_commas(block_parameter_count(m)), " + ",
                                   with_commas(m.d_model), " = ", with_commas(counts.total())));
}

void add_flops(const AccountCase& c, Account& account) {
  const auto rows = static_cast<double>(c.shape.batch_size);
  const ForwardFlops one = forward_flops(c.model, c.shape.seq_len);
  const double forward = rows * one.total();
  account.table.add_row({"FLOPs forward", forward / 1e12, "TFLOP"});
  account.table.add_row({"  projections", rows * one.linear / 1e12, "TFLOP"});
  account.table.add_row({"  attention", rows * one.attention / 1e12, "TFLOP"});
  account.table.add_row({"  head", rows * one.head / 1e12, "TFLOP"});
  const double step = step_flops(c.model, c.shape.batch_size, c.shape.seq_len);
  if (c.backward) {
    account.table.add_row({"FLOPs backward", (step - forward) / 1e12, "TFLOP"});
    account.table.add_row({"FLOPs in all", step / 1e12, "TFLOP"});
  }
  const auto tokens = rows * static_cast<double>(c.shape.seq_len);
  account.table.add_row({"FLOPs a token", (c.backward ? step : forward) / tokens / 1e9, "GFLOP"});
  account.derivation.push_back(
      str("FLOPs forward = 2 T L (4 C^2 + 3 C F) + 4 B L C N (N + 1) / 2 + 2 T C V = ",
          number(rows * one.linear / 1e12), " + ", number(rows * one.attention / 1e12), " + ",
          number(rows * one.head / 1e12), " = ", number(forward / 1e12),
          " TFLOP: two for each multiplication and addition of the matrix products; attention "
          "takes the N (N + 1) / 2 pairs that the mask leaves"));
  if (c.backward) {
    account.derivation.push_back(
        str("FLOPs backward = 2 x forward (a product for the input's gradient, one for the "
            "weight's) = ",
            number((step - forward) / 1e12), " TFLOP"));
  }
}

void add_state(const AccountCase& c, Account& account) {
  const auto parameters = static_cast<double>(parameter_count(c.model));
  const StateBytes state = state_bytes(parameters);
  account.table.add_row({"memory: parameters", state.parameters / kGiB, "GiB"});
  if (c.backward) account.table.add_row({"memory: gradients", state.gradients / kGiB, "GiB"});
  if (c.update) {
    account.table.add_row({"memory: AdamW's moments", state.optimizer / kGiB, "GiB"});
    account.table.add_row(
        {"update: least memory traffic", update_traffic_bytes(parameters) / kGB, "GB"});
    account.derivation.push_back(str(
        "state = (4 + 4 + 8) bytes a parameter (float32, gradient, two moments) = ",
        number(state.total() / kGiB), " GiB; an update reads all four numbers and writes three: ",
        number(update_traffic_bytes(parameters) / kGB), " GB"));
  }
}

void add_activations(const AccountCase& c, Account& account) {
  const double stream = residual_stream_bytes(c.model, c.shape);
  account.table.add_row({"one tensor of the residual stream", stream / kMiB, "MiB"});
  account.derivation.push_back(
      str("residual stream = 4 bytes x B N C = 4 x ", with_commas(c.shape.batch_size), " x ",
          with_commas(c.shape.seq_len), " x ", with_commas(c.model.d_model), " = ",
          number(stream / kMiB), " MiB"));
  const StateBytes state = state_bytes(static_cast<double>(parameter_count(c.model)));
  if (!c.backward) {
    const double temporaries = forward_temporaries_bytes(c.model, c.shape);
    account.table.add_row({"memory: temporaries, at least", temporaries / kGiB, "GiB"});
    account.table.add_row(
        {"memory: peak, at least", (state.parameters + temporaries) / kGiB, "GiB"});
    account.derivation.push_back(
        str("peak = parameters + the largest temporaries of one operation after the other = ",
            number(state.parameters / kGiB), " + ", number(temporaries / kGiB), " GiB"));
    return;
  }
  const double block = block_saved_bytes(c.model, c.shape);
  const double around = sum(head_saved_tensors(c.model, c.shape));
  const double kept = static_cast<double>(c.model.num_layers) * block + around;
  account.table.add_row({"kept for backward by one block", block / kMiB, "MiB"});
  account.table.add_row({"kept for backward in all", kept / kGiB, "GiB"});
  const double lasting = state.parameters + (c.update ? state.optimizer : 0);
  const double after_forward = lasting + kept, after_backward = lasting + state.gradients;
  account.table.add_row({"memory after forward, at least", after_forward / kGiB, "GiB"});
  account.table.add_row({"memory after backward, at least", after_backward / kGiB, "GiB"});
  account.table.add_row(
      {"memory: peak, at least", std::max(after_forward, after_backward) / kGiB, "GiB"});
  account.derivation.push_back(str("kept = L x one block + the head's = ", c.model.num_layers,
                                   " x ", number(block / kMiB), " + ", number(around / kMiB),
                                   " MiB = ", number(kept / kGiB),
                                   " GiB (account block lists one block's tensors)"));
  account.derivation.push_back(
      str("peak = ", c.update ? "parameters + moments" : "parameters",
          " + max(kept, gradients): gradients come as fast as activations go, block by block, so "
          "that the peak is at one end of backward = ",
          number(lasting / kGiB), " + max(", number(kept / kGiB), ", ",
          number(state.gradients / kGiB), ") GiB, temporaries left out"));
}

}  // namespace

Account account_step(const StepAccount& inputs) {
  const AccountCase c = account_case(inputs);
  Account account{.name = "step",
                  .table = quantity_table(
                      str("Account of one pass (", inputs.mode, "): ", case_name(inputs, c))),
                  .derivation = {letters_of(c)}};
  add_parameters(c, account);
  add_flops(c, account);
  add_state(c, account);
  add_activations(c, account);
  return account;
}

Account account_block(const StepAccount& inputs) {
  const AccountCase c = account_case(inputs);
  const auto tensors = block_saved_tensors(c.model, c.shape);
  const double all = sum(tensors);
  Account account{.name = "block", .table = {}, .derivation = {letters_of(c)}};
  account.table.title = str("What one block keeps for backward: ", case_name(inputs, c));
  account.table.columns = {measure::text_column("tensor"), measure::number_column("size", "MiB", 2),
                           measure::number_column("share", "%", 1)};
  for (const SavedTensor& tensor : tensors) {
    account.table.add_row({tensor.name, tensor.bytes / kMiB, 100 * tensor.bytes / all});
  }
  account.table.add_row({"in all", all / kMiB, 100.0});
  const double gradients = 4 * static_cast<double>(block_parameter_count(c.model));
  account.table.add_row({"beside it: gradients of its weights", gradients / kMiB, measure::Cell()});
  account.derivation.push_back(str(
      "(B, N, C) in float32 is 4 T C = ", number(residual_stream_bytes(c.model, c.shape) / kMiB),
      " MiB, (B, N, F) is F / C times that; in bf16 what a matrix product reads has 2 bytes, "
      "the residual stream 4"));
  account.derivation.push_back(
      str("gradients = 4 (4 C^2 + 3 C F + 2 C) = ", number(gradients / kMiB), " MiB"));
  if (c.shape.on_gpu && c.shape.bf16) {
    account.derivation.push_back(
        "On a GPU the gated values are made again in backward, and copies of weights stay from "
        "step "
        "to step.");
  }
  return account;
}

}  // namespace flashstep::report
