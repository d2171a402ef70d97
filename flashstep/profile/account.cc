#include "flashstep/profile/account.h"

#include "flashstep/bench/workload.h"
#include "flashstep/error.h"
#include "flashstep/profile/account_case.h"

namespace flashstep::tools {

void check_one_of(const char* what, const std::string& got,
                  const std::vector<std::string>& allowed) {
  require(contains(allowed, got), "[account] expected ", what, " to be one of ", join(allowed),
          ", got \"", got, "\"");
}

BenchReport account_report(measure::Table table) {
  BenchReport report;
  report.table = std::move(table);
  return report;
}

std::vector<NamedTable> all_accounts() {
  return {{"step", account_step({})},           {"block", account_block({})},
          {"attention", account_attention({})}, {"sharding", account_sharding({})},
          {"ring", account_ring({})},           {"mesh", account_mesh({})},
          {"bounds", account_bounds({})},       {"recompute", account_recompute({})}};
}

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

std::string case_name(const StepAccount& inputs, const AccountCase& c) {
  return str(model_name(c.model), ", batch ", with_commas(c.shape.batch_size), ", context ",
             with_commas(c.shape.seq_len), ", ", inputs.precision, ", attention ",
             inputs.attention);
}

std::string letters_of(const AccountCase& c) {
  const ModelConfig& m = c.model;
  return str("Letters: V = ", with_commas(m.vocab_size),
             " tokens in the vocabulary, C = ", with_commas(m.d_model),
             " wide, F = ", with_commas(m.d_ff), " inside, L = ", m.num_layers,
             " blocks, H = ", m.num_heads, " heads; B = ", c.shape.batch_size,
             " rows of N = ", with_commas(c.shape.seq_len),
             " tokens, T = B N = ", with_commas(c.shape.batch_size * c.shape.seq_len), ".");
}

}  // namespace flashstep::tools
