// Results that reverse each conclusion about ranks turn the text.
#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

std::vector<Result> allreduce(const Rows& rows) {
  return {result_of("allreduce", "allreduce_2025",
                    {table_of({"backend", "device", "ranks", "size", "time", "bus", "of link",
                               "algorithm", "alone"},
                              rows)})};
}

TEST(AnswersCommunication, SizeDecidesOrTheCallDoes) {
  const auto row = [](int ranks, double size, double time) {
    return std::vector<Cell>{"gloo", "cpu", ranks, size, time, 1.0, 50.0, 1.0, time};
  };
  const char* name = "distributed_communication_single_node";
  EXPECT_SAYS(answer_text(name, allreduce({row(2, 1, 1), row(2, 10, 10)})),
              "the bandwidth decides already at 1");
  EXPECT_SAYS(answer_text(name, allreduce({row(2, 1, 1), row(2, 10, 2)})),
              "the fixed cost of a call still counts");
  EXPECT_SAYS(answer_text(name, allreduce({row(2, 10, 10), row(4, 10, 15)})), "that explains it");
  EXPECT_SAYS(answer_text(name, allreduce({row(2, 10, 10), row(4, 10, 40)})),
              "get in each other's way");
}

TEST(AnswersCommunication, TheFasterBackendIsNamed) {
  const auto rows = [](double nccl, double gloo) {
    return allreduce({{"nccl", "cuda", 2, 10.0, nccl, 1.0, 50.0, 1.0, nccl},
                      {"gloo", "cpu", 2, 10.0, gloo, 1.0, 50.0, 1.0, gloo}});
  };
  const char* name = "distributed_communication_single_node";
  EXPECT_SAYS(answer_text(name, rows(1, 20)), "NCCL is 20.0 times faster than Gloo");
  EXPECT_SAYS(answer_text(name, rows(20, 1)), "NCCL is 20.0 times slower than Gloo");
  EXPECT_SAYS(answer_text(name, rows(1, 1.01)), "NCCL is as fast as Gloo within 2 %");
}

struct Ddp {
  double flat_sends = 30;
  double none = 100, naive = 140, flat = 130, overlapped = 110, bucketed = 105, small_bucket = 120;
  double naive_hidden = 0, overlapped_hidden = 80, weights = 0;
};

std::vector<Result> ddp(const Ddp& d) {
  const auto row = [&](const char* wrapper, double step, Cell communication, double hidden,
                       Cell weights) {
    return std::vector<Cell>{"small",       2,    128,    "fp32", wrapper, step,
                             communication, 10.0, hidden, weights};
  };
  return {
      result_of("ddp", "ddp_2025",
                {table_of({"model", "ranks", "context", "precision", "wrapper", "step",
                           "communication", "exposed", "hidden", "weights"},
                          {row("none", d.none, Cell(), 0, Cell()),
                           row("naive", d.naive, 40.0, d.naive_hidden, d.weights),
                           row("flat", d.flat, d.flat_sends, 0, d.weights),
                           row("overlapped", d.overlapped, 40.0, d.overlapped_hidden, d.weights),
                           row("bucketed 1", d.small_bucket, 40.0, 70, d.weights),
                           row("bucketed 25", d.bucketed, 35.0, 85, d.weights)})})};
}

TEST(AnswersDataParallel, WeightsAreHeldAgainstASingleProcess) {
  for (const char* name :
       {"naive_ddp", "ddp_overlap_individual_parameters", "ddp_overlap_bucketed"}) {
    EXPECT_SAYS(answer_text(name, ddp({})), "bit for bit");
    EXPECT_SAYS(answer_text(name, ddp({.weights = 0.5})), "NOT those of a single process");
    EXPECT_SAYS(answer_text(name, ddp({.weights = NAN})), "NOT those of a single process");
  }
}

TEST(AnswersDataParallel, WhatAveragingAdds) {
  EXPECT_SAYS(answer_text("naive_ddp_benchmarking", ddp({})), "adds 40.0 %");
  EXPECT_SAYS(answer_text("naive_ddp_benchmarking", ddp({})), "29 %");
  EXPECT_SAYS(answer_text("naive_ddp_benchmarking", ddp({.naive = 90})), "adds nothing");
  EXPECT_SAYS(answer_text("naive_ddp_benchmarking", ddp({.naive = 101})), "adds nothing");
}

TEST(AnswersDataParallel, FlatAndOverlappedAgainstNaive) {
  const auto flat = [](const Ddp& d) {
    return answer_text("minimal_ddp_flat_benchmarking", ddp(d));
  };
  EXPECT_SAYS(flat({}), "the step with one call for all is shorter; communication itself is short");
  EXPECT_SAYS(flat({.flat = 200}), "the step with one call for all is longer;");
  EXPECT_SAYS(flat({.flat = 139.9}), "the step with one call for all is as long within 2 %;");
  EXPECT_SAYS(flat({.flat = 139.9}), "from 140 to 140 ms (the same within 2 %)");
  EXPECT_SAYS(flat({.flat_sends = 50}), "communication itself is longer.");
  const char* name = "ddp_overlap_individual_parameters_benchmarking (a)";
  const std::string sent = "with each gradient sent as soon as it is there is ";
  EXPECT_SAYS(answer_text(name, ddp({})),
              "Beside sending each at the end the step " + sent + "sho");
  EXPECT_SAYS(answer_text(name, ddp({})),
              "Beside one flat call at the end the step " + sent + "sho");
  EXPECT_SAYS(answer_text(name, ddp({.overlapped = 300})),
              "at the end the step " + sent + "longer");
  const char* traces = "ddp_overlap_individual_parameters_benchmarking (b)";
  EXPECT_SAYS(answer_text(traces, ddp({})), "overlap (the picture's lanes)");
  EXPECT_SAYS(answer_text(traces, ddp({.overlapped_hidden = 1})), "do not overlap more");
}

TEST(AnswersDataParallel, TheFastestBucketIsNamed) {
  const char* name = "ddp_bucketed_benchmarking (a)";
  EXPECT_SAYS(answer_text(name, ddp({})), "buckets of 25.0 MB are the fastest");
  EXPECT_SAYS(answer_text(name, ddp({})), "buckets pay");
  EXPECT_SAYS(answer_text(name, ddp({.bucketed = 150})), "buckets of 1.00 MB are the fastest");
  EXPECT_SAYS(answer_text(name, ddp({.bucketed = 150})), "buckets do not pay here");
  EXPECT_SAYS(answer_text(name, ddp({.bucketed = 109})), "as long as they within 2 %");
  EXPECT_SAYS(answer_text(name, ddp({.bucketed = 119})), "(120 ms, the same within 2 %)");
}

TEST(AnswersDataParallel, TheModelOfBucketsIsHeldAgainstTheMeasured) {
  // small: 128 M parameters, s = 514 MB; w = 1 GB/s.
  const auto with = [](double alone) {
    auto results = ddp({});
    // 1 MB alone takes `alone` ms, of which 1 ms are its bytes.
    results.push_back(allreduce({{"gloo", "cpu", 2, 1.0, alone, 1.0, 50.0, 1.0, alone}}).front());
    return results;
  };
  const char* name = "ddp_bucketed_benchmarking (b)";
  // o = 1 ms: sqrt(0.514e9 x 1e9 x 1e-3) = 23 MB.
  EXPECT_SAYS(answer_text(name, with(2)), "within a factor of four");
  // o = 99 ms: 226 MB.
  EXPECT_SAYS(answer_text(name, with(100)), "is off");
}

std::vector<Result> sharding(double state, double peak, double step, double flat_step) {
  const auto row = [](const char* optimizer, double peak, double state, double step) {
    return std::vector<Cell>{"xl", 2,   "fp32", optimizer, 8.0,  peak,
                             peak, 8.0, 8.0,    state,     20.0, step};
  };
  return {result_of(
      "sharding", "sharding_2025",
      {table_of({"model", "ranks", "precision", "optimizer", "after init", "before update",
                 "after update", "parameters", "gradients", "state", "update", "step"},
                {row("none", 40, 16, 100), row("whole", peak, state, step),
                 row("flat", peak, state, flat_step)})})};
}

TEST(AnswersSharding, StateMemoryAndTime) {
  const auto good = sharding(8, 32, 90, 80), bad = sharding(16, 40, 130, 140);
  EXPECT_SAYS(answer_text("optimizer_state_sharding", good), "divided evenly");
  EXPECT_SAYS(answer_text("optimizer_state_sharding", bad), "NOT divided evenly");
  const char* memory = "optimizer_state_sharding_accounting (a)";
  EXPECT_SAYS(answer_text(memory, good), "which is what the peak loses");
  EXPECT_SAYS(answer_text(memory, sharding(8, 40, 90, 80)), "something else sets it");
  const char* time = "optimizer_state_sharding_accounting (b)";
  EXPECT_SAYS(answer_text(time, good), "10.0 % shorter");
  EXPECT_SAYS(answer_text(time, bad), "30.0 % longer");
  EXPECT_SAYS(answer_text(time, sharding(8, 32, 98.5, 80)), "the same within 2 %");
  const char* zero = "optimizer_state_sharding_accounting (c)";
  EXPECT_SAYS(answer_text(zero, good), "cut through tensors is faster");
  EXPECT_SAYS(answer_text(zero, bad), "cut through tensors is slower");
  EXPECT_SAYS(answer_text(zero, sharding(8, 32, 90, 89.9)), "both are as fast within 2 %");
}

TEST(AnswersSharding, WhatOfTheSendingIsExposed) {
  const char* time = "optimizer_state_sharding_accounting (b)";
  EXPECT_SAYS_NOT(answer_text(time, sharding(8, 32, 90, 80)), "travel");
  std::vector<Result> traced = sharding(8, 32, 90, 80);
  measure::Table& table = traced[0].tables[0].table;
  for (const char* name : {"communication", "exposed", "idle"})
    table.columns.push_back(measure::number_column(name, "ms", 2));
  const std::vector<std::vector<Cell>> cells = {
      {0.0, 0.0, 0.5}, {12.0, 3.0, 2.0}, {Cell(), Cell(), Cell()}};
  for (size_t row = 0; row < cells.size(); ++row)
    table.rows[row].insert(table.rows[row].end(), cells[row].begin(), cells[row].end());
  const std::string text = answer_text(time, traced);
  EXPECT_SAYS(text,
              "of 12.0 ms in which updated parameters travel 25 % have no update beside them, "
              "and for 2.00 ms nothing runs.");
  EXPECT_EQ(text.find("travel"), text.rfind("travel")) << "flat has no trace: " << text;
}

TEST(AnswersSharding, WhatIsNotBuiltSaysSo) {
  EXPECT_SAYS(answer_text("fsdp", {}), "Not measured: needs fully sharded data parallelism");
  EXPECT_SAYS(answer_text("distributed_communication_multi_node", {}),
              "Not measured: needs a second machine");
}

}  // namespace
}  // namespace flashstep::report
