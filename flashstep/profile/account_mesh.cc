// Accounts of feed-forward layers on a mesh: the handouts' communication accounting (2025) and
// bounds (2026).
#include <algorithm>
#include <cmath>

#include "flashstep/error.h"
#include "flashstep/profile/account.h"
#include "flashstep/profile/account_table.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

void check(const FeedForward& layer, const Accelerator& accelerator) {
  require(layer.d_model >= 1 && layer.d_ff >= 1,
          "[account] expected d_model and d_ff from 1 on, got ", layer.d_model, " and ",
          layer.d_ff);
  require(layer.matrices == 2 || layer.matrices == 3,
          "[account] expected a feed-forward layer of 2 or 3 matrices, got ", layer.matrices);
  require(layer.element_bytes > 0 && accelerator.flops_per_s > 0 && accelerator.bytes_per_s > 0,
          "[account] expected bytes an element, FLOP/s and bytes/s above 0, got ",
          layer.element_bytes, ", ", accelerator.flops_per_s, " and ", accelerator.bytes_per_s);
}

void check(const MeshAccount& inputs) {
  check(inputs.layer, inputs.accelerator);
  require(inputs.blocks >= 1 && inputs.tokens >= 0,
          "[account] expected 1 block or more and 0 tokens or more, got ", inputs.blocks, " and ",
          inputs.tokens);
  require(inputs.gpu_gb > 0 && inputs.limit_gb > 0, "[account] expected memory above 0 GB, got ",
          inputs.gpu_gb, " and ", inputs.limit_gb);
  require(inputs.mesh.data >= 1 && inputs.mesh.tensor >= 1 && inputs.mesh.data_links > 0 &&
              inputs.mesh.tensor_links > 0,
          "[account] expected a mesh of 1 x 1 or more with links, got ", inputs.mesh.data, " x ",
          inputs.mesh.tensor);
}

// (a) and (b): what is stored, and between how many it must be divided.
void account_state(const MeshAccount& inputs, measure::Table& table) {
  const FeedForward& layer = inputs.layer;
  const double parameters = feed_forward_parameters(layer, inputs.blocks);
  const StateBytes state = state_bytes(parameters);
  const double a_token = feed_forward_saved_bytes(layer, inputs.blocks, 1);
  const double saved = a_token * static_cast<double>(inputs.tokens);
  const double all = state.total() + saved;
  const int64_t gpus = counted(std::ceil(all / (inputs.gpu_gb * kGB)), "accelerators");
  const double left = inputs.limit_gb * kGB - saved / 2;
  if (left > 0) counted((state.total() + saved / 2) / left, "ranks");
  const int64_t ranks = least_ranks(state.total(), saved, inputs.limit_gb * kGB);
  table.add_row({"parameters", counted(parameters, "parameters"), ""});
  table.add_row({"master weights", state.parameters / kGB, "GB"});
  table.add_row({"accumulated gradients", state.gradients / kGB, "GB"});
  table.add_row({"AdamW's moments", state.optimizer / kGB, "GB"});
  table.add_row({"state in all", state.total() / kGB, "GB"});
  table.add_row({"kept for backward by a token", a_token / kMB, "MB"});
  if (inputs.tokens > 0) {
    table.add_row(
        {str("kept for backward by ", with_commas(inputs.tokens), " tokens"), saved / kGB, "GB"});
  }
  table.add_row({str("accelerators of ", inputs.gpu_gb, " GB"), gpus, ""});
  table.add_row({str("N_FSDP for less than ", inputs.limit_gb, " GB"),
                 ranks > 0 ? measure::Cell(ranks) : measure::Cell("none"), ""});
  derive(table, "parameters = blocks x m D F = ", inputs.blocks, " x ", layer.matrices, " x ",
         with_commas(layer.d_model), " x ", with_commas(layer.d_ff), " = ",
         with_commas(static_cast<int64_t>(parameters)));
  derive(table,
         "state = (4 + 4 + 8) bytes a parameter in float32 = ", number(state.total() / kGB, 6),
         " GB");
  derive(table, "kept for backward = the inputs of the matrix products, ",
         layer.matrices == 2 ? "D + F" : "D + 3 F", " elements of ", layer.element_bytes,
         " bytes in each block = ", number(a_token / kMB, 5), " MB a token");
  derive(table, "accelerators = ceil((state + kept by ", with_commas(inputs.tokens), " tokens) / ",
         inputs.gpu_gb, " GB) = ceil(", number(all / kGB, 6), " / ", inputs.gpu_gb, ") = ", gpus);
  derive(table, "per device: (state + kept / 2) / N + kept / 2 < ", inputs.limit_gb,
         " GB (every second layer's activations are divided)",
         ranks > 0 ? str(" from N = ", ranks,
                         " on: ", number(divided_bytes(state.total(), saved, ranks) / kGB), " GB")
                   : ": for no N, half of the activations alone is more");
}

// A bound, or what it means that there is none.
measure::Cell bound(double value, const char* without) {
  if (value == 0) return "any";
  return std::isfinite(value) ? measure::Cell(value) : measure::Cell(without);
}

// (c): compute-bound on the mesh, forward.
void account_batch(const MeshAccount& inputs, measure::Table& table) {
  const FeedForward& layer = inputs.layer;
  const Mesh& mesh = inputs.mesh;
  const Accelerator& accelerator = inputs.accelerator;
  const double count = static_cast<double>(mesh.data) * mesh.tensor;
  const double ratio = accelerator.flops_per_s / accelerator.bytes_per_s;
  table.add_row({"C / W", ratio, "FLOP a byte"});
  for (const bool at_once : {true, false}) {
    const char* name = at_once ? "axes at once" : "axes one after the other";
    const double tokens = least_tokens(layer, mesh, accelerator, at_once);
    table.add_row({str("least batch, ", name), bound(tokens, "none"), "tokens"});
    table.add_row({str("least batch a device, ", name), bound(tokens / count, "none"), "tokens"});
  }
  const double e = layer.element_bytes;
  // (N - 1) / N taken for 1, as in the least batch.
  const double tensor_most =
      most_tensor_parallel_forward(layer,
                                   {.flops_per_s = accelerator.flops_per_s,
                                    .bytes_per_s = accelerator.bytes_per_s * mesh.tensor_links}) -
      1;
  table.add_row({"most TP ranks", tensor_most, ""});
  Mesh weights_alone = mesh;
  weights_alone.tensor = 1;
  const double hidden = least_tokens(layer, weights_alone, accelerator, true);
  const double in_turn = least_tokens(layer, mesh, accelerator, false);
  derive(table, "forward on X = ", mesh.data, " (FSDP) by Y = ", mesh.tensor,
         " (TP), M_X = ", mesh.data_links, ", M_Y = ", mesh.tensor_links,
         ": compute 2 m B D F / (X Y C); weights gathered e m D F / (Y W M_X); activations "
         "all-reduced 2 e B D / (X W M_Y); (N - 1) / N taken for 1; nothing is sent where N is 1");
  if (mesh.data == 1) derive(table, "X = 1: no weights are gathered");
  if (mesh.tensor == 1)
    derive(table, "Y = 1: no activations are sent; one after the other is the same as at once");
  if (mesh.data > 1)
    derive(table, "weights hidden: B > X e C / (2 W M_X) = ", mesh.data, " x ", e, " x ",
           number(ratio, 5), " / (2 x ", mesh.data_links, ") = ", number(hidden, 6),
           " tokens, B / (X Y) = ", number(hidden / count, 5));
  if (mesh.tensor > 1)
    derive(
        table, "activations hidden: Y < m F W M_Y / (e C) = ", number(tensor_most),
        tensor_most > mesh.tensor ? ", which holds for every batch" : ", which no batch reaches");
  if (mesh.data > 1 && mesh.tensor > 1)
    derive(table, "one after the other: B > X e C / (2 W M_X) / (1 - Y e C / (m F W M_Y))",
           std::isfinite(in_turn) ? str(" = ", number(in_turn, 6), " tokens")
                                  : ", whose divisor is not above 0: no batch");
}

measure::Cell ms(double seconds) { return seconds * 1e3; }

// X as near to N's best ratio as a divisor of N is.
Mesh best_mesh(const FeedForward& layer, double tokens, int64_t ranks) {
  const double wanted = std::log(best_mesh_ratio(layer, tokens));
  Mesh best{.data = static_cast<int>(ranks), .tensor = 1};
  double distance = INFINITY;
  for (int64_t data = 1; data <= ranks; ++data) {
    if (ranks % data != 0) continue;
    const double ratio = static_cast<double>(data * data) / static_cast<double>(ranks);
    if (std::abs(std::log(ratio) - wanted) >= distance) continue;
    distance = std::abs(std::log(ratio) - wanted);
    best = {.data = static_cast<int>(data), .tensor = static_cast<int>(ranks / data)};
  }
  return best;
}

}  // namespace

measure::Table account_mesh(const MeshAccount& inputs) {
  check(inputs);
  measure::Table table = quantity_table(
      str("Communication accounting: ", inputs.blocks, " feed-forward layers, D ",
          with_commas(inputs.layer.d_model), ", F ", with_commas(inputs.layer.d_ff)));
  account_state(inputs, table);
  account_batch(inputs, table);
  return table;
}

measure::Table account_bounds(const BoundsAccount& inputs) {
  const auto& [layer, tokens, accelerator, ranks] = inputs;
  check(layer, accelerator);
  require(tokens >= 1 && ranks >= 1 && ranks <= 1 << 20,
          "[account] expected 1 token or more and 1 to 1,048,576 ranks, got ", tokens, " and ",
          ranks);
  measure::Table table =
      empty_table(str("One feed-forward layer on ", with_commas(ranks), " accelerators: D ",
                      with_commas(layer.d_model), ", F ", with_commas(layer.d_ff), ", batch of ",
                      with_commas(tokens), " tokens"),
                  {measure::text_column("strategy"), measure::text_column("pass"),
                   significant("FLOPs a device", "TFLOP"), significant("compute", "ms"),
                   significant("weights sent", "ms"), significant("activations sent", "ms"),
                   measure::text_column("bound by"), significant("most devices", "")});
  constexpr bool kForward = true, kBackward = false;
  const auto add = [&](const std::string& strategy, const Mesh& mesh, bool forward, double most,
                       bool at_once = true) {
    const PassTimes times = (forward ? forward_times : backward_times)(inputs.layer, inputs.tokens,
                                                                       mesh, inputs.accelerator);
    const double sent =
        at_once ? std::max(times.data_s, times.tensor_s) : times.data_s + times.tensor_s;
    table.add_row({strategy, forward ? "forward" : "backward", times.flops / 1e12,
                   ms(times.compute_s), ms(times.data_s), ms(times.tensor_s),
                   sent > times.compute_s ? "communication" : "compute", bound(most, "any")});
  };
  const auto count = static_cast<int>(ranks);
  const double data = most_data_parallel(layer, tokens, accelerator);
  const Mesh dp = {.data = count, .sharded = false}, fsdp = {.data = count}, tp = {.tensor = count};
  add("DP", dp, kForward, INFINITY);
  add("DP", dp, kBackward, data);
  add("FSDP", fsdp, kForward, data);
  add("FSDP", fsdp, kBackward, data);
  add("TP", tp, kForward, most_tensor_parallel_forward(layer, accelerator));
  add("TP", tp, kBackward, most_tensor_parallel_backward(layer, accelerator));
  const Mesh mesh = best_mesh(layer, tokens, ranks);
  for (const bool at_once : {true, false}) {
    add(str("FSDP ", mesh.data, " x TP ", mesh.tensor, at_once ? ", at once" : ", in turn"), mesh,
        kForward, most_mesh(layer, tokens, accelerator, at_once), at_once);
  }
  derive(table, "B = ", with_commas(tokens), " tokens, D, F, m = ", layer.matrices,
         " matrices, e = ", layer.element_bytes,
         " bytes an element, C / W = ", number(accelerator.flops_per_s / 1e12), " TFLOP/s / ",
         number(accelerator.bytes_per_s / kGB),
         " GB/s = ", number(accelerator.flops_per_s / accelerator.bytes_per_s), " FLOP a byte.");
  for (const std::string& sentence : notes("account bounds")) derive(table, sentence);
  return table;
}

}  // namespace flashstep::tools
