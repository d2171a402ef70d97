// Accounts with other numbers make other answers.
#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

std::vector<Result> account(measure::Table table) {
  return {result_of("account", "account", {std::move(table)})};
}

std::vector<Result> mesh(double at_once, double a_device = 319.4, const char* tokens = "320") {
  return account(table_of({"quantity", "value", "unit"},
                          {{"state in all", 3518.4, "GB"},
                           {"kept for backward by a token", 17.5, "MB"},
                           {str("kept for backward by ", tokens, " tokens"), 5.6, "GB"},
                           {"N_FSDP for less than 95 GB", 38, ""},
                           {"least batch, axes at once", at_once, "tokens"},
                           {"least batch a device, axes at once", a_device, "tokens"},
                           {"least batch, axes one after the other", 20000.0, "tokens"},
                           {"most TP ranks", 10.0, ""}},
                          "Communication accounting: 126 layers"));
}

TEST(AnswersAccount, Mesh) {
  EXPECT_SAYS(answer_text("communication_accounting (a)", mesh(15000)), "state in all 3,518.40 GB");
  EXPECT_SAYS(answer_text("communication_accounting (a)", mesh(15000)),
              "The 320 tokens are the least batch of one device in part (c), 319.40, rounded up.");
  EXPECT_SAYS(answer_text("communication_accounting (a)", mesh(15000, 1999.2, "2,000")),
              "The 2,000 tokens are the least batch of one device");
  EXPECT_SAYS(answer_text("communication_accounting (a)", mesh(15000, 234.4)),
              "The number of tokens, 320, is chosen");
  EXPECT_SAYS(answer_text("communication_accounting (b)", mesh(15000)),
              "N_FSDP for less than 95 GB 38");
  EXPECT_SAYS(answer_text("communication_accounting (c)", mesh(15000)), "15,000.00 tokens");
  EXPECT_SAYS(answer_text("communication_accounting (d)", mesh(15000)), "25 % fewer tokens");
  EXPECT_SAYS(answer_text("communication_accounting (d)", mesh(30000)), "no fewer tokens");
}

TEST(AnswersAccount, Ring) {
  const auto ring = [](double ratio, double sent = 300) {
    return account(table_of({"ranks", "size", "algorithm", "steps", "sent", "time", "x ring"},
                            {{2, 100.0, "ring", 2, 100.0, 0.7, 1.0},
                             {2, 100.0, "whole tensors (alternate)", 1, 100.0, 0.7, 1.0},
                             {4, 100.0, "ring", 6, 150.0, 0.7, 1.0},
                             {4, 100.0, "whole tensors (alternate)", 3, sent, 0.7, ratio}},
                            "All-reduce over links"));
  };
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(2)), "2.00 times as long as the ring");
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(2)), ": 1 step where the ring takes 2");
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(2)), ": 3 steps where the ring takes");
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(1)), "as long as the ring");
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(0.5)), "0.50 of the ring's time");
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(2)), "2.00 times the ring's,");
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(2)), "N / 2 times the bytes");
  EXPECT_SAYS(answer_text("alternate_ring_all_reduce", ring(2, 150)), "1.00 times the ring's,");
  EXPECT_SAYS_NOT(answer_text("alternate_ring_all_reduce", ring(2, 150)), "N / 2 times the bytes");
}

TEST(AnswersAccount, Bounds) {
  const auto bounds = [](const char* by) {
    return account(table_of({"strategy", "pass", "compute", "weights sent", "activations sent",
                             "bound by", "most devices"},
                            {{"DP", "backward", 1.0, 2.0, 0.0, by, 30.0},
                             {"FSDP 4 x TP 2, at once", "forward", 1.0, 2.0, 0.5, by, 90.0}},
                            "One feed-forward layer on 8"));
  };
  EXPECT_SAYS(answer_text("dp_bound", bounds("communication")), "bound by communication");
  EXPECT_SAYS(answer_text("dp_bound", bounds("compute")), "bound by compute");
  EXPECT_SAYS(answer_text("fsdp_tp_bound", bounds("compute")), "up to 90.0 devices");
  EXPECT_SAYS(answer_text("tp_bound", bounds("compute")), "Not measured");
}

TEST(AnswersAccount, Recomputation) {
  const auto schemes = [](double neighbour, double from_start = 5, int passes = 528) {
    return account(
        table_of({"scheme", "inputs kept", "blocks kept", "peak", "block passes", "step"},
                 {{"keep everything", 0, 32, 100.0, 32, 1.0},
                  {"groups of 1 (best)", 32, 1, 20.0, 64, 1.33},
                  {"groups of 2", 16, 2, neighbour, 64, 1.33},
                  {"halves of halves", 5, 1, 10.0, 192, 2.67},
                  {"from the start each time", 1, 1, from_start, passes, 6.17}},
                 "Recomputation of activations"));
  };
  const char* name = "gradient_checkpointing (b)";
  EXPECT_SAYS(answer_text(name, schemes(25)), "groups of 1 (best) blocks peak at 20.00 GiB");
  EXPECT_SAYS(answer_text(name, schemes(25)), "groups of 2: 25.00 GiB, more.");
  EXPECT_SAYS(answer_text(name, schemes(15)), "NOT more");
  EXPECT_SAYS(answer_text(name, schemes(25)), "Not measured: the measured peak of it");
  EXPECT_FALSE(answer(question_of(name), schemes(25), {}).measured);
  const auto recursive = [&](double from_start, int passes) {
    return answer_text("gradient_checkpointing (a)", schemes(25, from_start, passes));
  };
  EXPECT_SAYS(recursive(5, 528), "keep everything: peak 100.00 GiB, 0 inputs kept, 32 passes");
  EXPECT_SAYS(recursive(5, 528), "O(log n) and O(n log n)");
  EXPECT_SAYS(recursive(5, 528), "O(1) memory for n (n + 1) / 2 = O(n^2) passes");
  EXPECT_SAYS(recursive(5, 528), "from the start each time: peak 5.00 GiB, 1 input kept, 528");
  EXPECT_SAYS(recursive(5, 528),
              "needs the least memory: from the start each time. It makes 16.5 times");
  EXPECT_SAYS_NOT(recursive(5, 600), "O(1) memory");
  EXPECT_SAYS(recursive(15, 528), "needs the least memory: halves of halves. It makes 6.0 times");
}

TEST(AnswersAccount, FullyShardedMemory) {
  const auto state = [](double sharded) {
    return account(
        table_of({"ranks", "strategy", "in all", "of DDP", "gathered"},
                 {{2, "DDP", 32.0, 100.0, 0.0}, {2, "ZeRO-3 (FSDP)", sharded, 50.0, 1.0}},
                 "State and traffic of one rank"));
  };
  EXPECT_SAYS(answer_text("fsdp_accounting (a)", state(17)),
              "15.00 GB less. What it keeps includes 1.00 GB of layers that are whole");
  EXPECT_SAYS(answer_text("fsdp_accounting (a)", state(33)), "no less");
}

}  // namespace
}  // namespace flashstep::report
