// Accounts of data parallelism: what each rank keeps and sends, and all-reduce in rings.
#include "flashstep/bench/workload.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/profile/account.h"
#include "flashstep/profile/account_table.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

constexpr std::pair<ZeroStage, const char*> kStages[] = {
    {ZeroStage::kNone, "DDP"},
    {ZeroStage::kState, "ZeRO-1"},
    {ZeroStage::kGradients, "ZeRO-2"},
    {ZeroStage::kParameters, "ZeRO-3 (FSDP)"},
};

constexpr std::pair<AllReduce, const char*> kAllReduces[] = {
    {AllReduce::kRing, "ring"},
    {AllReduce::kTwoRings, "ring both ways"},
    {AllReduce::kWholeTensors, "whole tensors (alternate)"},
    {AllReduce::kThroughOneRank, "chain to one rank and back"},
};

void check_ranks(const std::vector<int64_t>& ranks) {
  require(!ranks.empty(), "[account] expected a number of ranks");
  for (const int64_t count : ranks)
    require(count >= 1 && count <= 1 << 20, "[account] expected 1 to 1,048,576 ranks, got ", count);
}

ZeroSizes sizes_of(const ModelConfig& model, double sent_bytes) {
  const auto parameters = static_cast<double>(parameter_count(model));
  const StateBytes state = state_bytes(parameters);
  return {.parameter_bytes = state.parameters,
          .gradient_bytes = state.gradients,
          .state_bytes = state.optimizer,
          .sent_parameter_bytes = sent_bytes * parameters,
          .sent_gradient_bytes = sent_bytes * parameters,
          .layer_bytes = sent_bytes * static_cast<double>(block_parameter_count(model))};
}

}  // namespace

measure::Table account_sharding(const ShardingAccount& inputs) {
  check_ranks(inputs.ranks);
  check_one_of("the dtype that is sent", inputs.sent, {"fp32", "bf16"});
  const ModelConfig model = resolved(inputs.model);
  const double sent_bytes = inputs.sent == "bf16" ? 2 : 4;
  const ZeroSizes sizes = sizes_of(model, sent_bytes);
  measure::Table table = empty_table(
      str("State and traffic of one rank: ", model_name(model), ", AdamW, ", inputs.sent,
          " on the wire"),
      {measure::integer_column("ranks"), measure::text_column("strategy"),
       measure::number_column("parameters", "GB", 2), measure::number_column("gradients", "GB", 2),
       measure::number_column("moments", "GB", 2), measure::number_column("gathered", "GB", 2),
       measure::number_column("in all", "GB", 2), measure::number_column("of DDP", "%", 1),
       measure::number_column("sent a step", "GB", 2)});
  for (const int64_t ranks : inputs.ranks) {
    const auto world_size = static_cast<int>(ranks);
    const double plain = zero_cost(ZeroStage::kNone, sizes, world_size).total();
    const auto add = [&](const char* name, const ZeroCost& cost) {
      table.add_row({ranks, name, cost.parameters / kGB, cost.gradients / kGB, cost.state / kGB,
                     cost.gathered / kGB, cost.total() / kGB, 100 * cost.total() / plain,
                     cost.sent_bytes / kGB});
    };
    for (const auto& [stage, name] : kStages) {
      add(name, zero_cost(stage, sizes, world_size));
      if (stage != ZeroStage::kState) continue;
      ZeroCost whole = zero_cost(stage, sizes, world_size);
      whole.sent_bytes = all_reduce_bytes(sizes.sent_gradient_bytes, world_size) +
                         all_gather_bytes(sizes.sent_parameter_bytes, world_size);
      add("whole parameters", whole);
    }
  }
  derive(table, "P = ", with_commas(parameter_count(model)),
         " parameters: 4 P = ", number(sizes.parameter_bytes / kGB),
         " GB of parameters, as much of gradients, 8 P = ", number(sizes.state_bytes / kGB),
         " GB of AdamW's moments; one copy in flight has ",
         number(sizes.sent_parameter_bytes / kGB), " GB.");
  for (const std::string& sentence : notes("account sharding")) derive(table, sentence);
  return table;
}

measure::Table account_ring(const RingAccount& inputs) {
  check_ranks(inputs.ranks);
  require(inputs.gigabytes_per_s > 0 && inputs.latency_us >= 0,
          "[account] expected a link of more than 0 GB/s and a latency from 0 us on, got ",
          inputs.gigabytes_per_s, " and ", inputs.latency_us);
  const Link link{.bytes_per_second = inputs.gigabytes_per_s * kGB,
                  .latency_s = inputs.latency_us * 1e-6};
  measure::Table table =
      empty_table(str("All-reduce over links of ", inputs.gigabytes_per_s, " GB/s, latency ",
                      inputs.latency_us, " us"),
                  {measure::integer_column("ranks"), significant("size", "MB"),
                   measure::text_column("algorithm"), measure::integer_column("steps"),
                   significant("sent", "MB"), significant("time", "ms"),
                   measure::number_column("x ring", "", 2)},
                  notes("account ring"));
  for (const int64_t ranks : inputs.ranks) {
    for (const double megabytes : inputs.megabytes) {
      require(megabytes > 0, "[account] expected sizes above 0 MB, got ", megabytes);
      const auto cost_of = [&](AllReduce algorithm) {
        return all_reduce_cost(algorithm, megabytes * kMB, static_cast<int>(ranks), link);
      };
      const double ring = cost_of(AllReduce::kRing).seconds;
      for (const auto& [algorithm, name] : kAllReduces) {
        const AllReduceCost cost = cost_of(algorithm);
        table.add_row({ranks, megabytes, name, static_cast<int64_t>(cost.steps),
                       cost.sent_bytes / kMB, cost.seconds * 1e3,
                       ring > 0 ? measure::Cell(cost.seconds / ring) : measure::Cell()});
      }
    }
  }
  for (const int64_t ranks : inputs.ranks) {
    const double limit = whole_tensors_limit_bytes(static_cast<int>(ranks), link);
    derive(table, "N = ", ranks, ": whole tensors beat the ring below S = o W N / (N - 2) = ",
           ranks <= 2 ? "infinity (as many bytes, half the steps)" : number(limit / kMB) + " MB");
  }
  return table;
}

}  // namespace flashstep::tools
