#include "flashstep/bench/ops.h"

#include <new>

#include <gtest/gtest.h>

namespace flashstep::tools {
namespace {

at::Tensor doubled(const std::vector<at::Tensor>& in) { return in[0] + in[0]; }
at::Tensor tripled(const std::vector<at::Tensor>& in) { return in[0] * 3; }
at::Tensor no_memory(const std::vector<at::Tensor>&) { throw std::bad_alloc(); }
at::Tensor no_number(const std::vector<at::Tensor>& in) { return in[0] * NAN; }

// What is wrong with `ours`, which shall double, beside `eager`; "" for nothing.
std::string fault_of(const TensorOp& ours, const TensorOp& eager,
                     const std::vector<std::string>& implementations) {
  const Operator op = {.name = "double",
                       .passes = {kForwardPass},
                       .inputs = [](const OpSize& size) -> OpInputs {
                         return {{size.draw({size.rows, size.width})}};
                       },
                       .ours = ours,
                       .eager = eager,
                       .formula = doubled,
                       .work = [](const OpSize&, bool) { return Work{.bytes = 1}; }};
  PythonPeer nobody({});
  const BenchOpsOptions options = {
      .rows = 4, .width = 64, .implementations = implementations, .cell_seconds = 1e-4, .turns = 1};
  for (const Record& record : measure_operator(options, op, "fp32", nobody)) {
    if (record.ours) return record.outcome.sentence() + record.fault;
  }
  return "ours is not there";
}

TEST(BenchOps, OursIsHeldAgainstPyTorchWhoeverIsTimed) {
  for (const std::vector<std::string>& implementations : {std::vector<std::string>(),
                                                          {"flashstep", "eager"},
                                                          {"flashstep", "compiled"},
                                                          {"flashstep"}}) {
    EXPECT_EQ(fault_of(doubled, doubled, implementations), "");
    EXPECT_EQ(fault_of(tripled, doubled, implementations).find("expected error of at most 1e-05"),
              0U);
  }
}

TEST(BenchOps, WherePyTorchHasNoMemoryOnlyNoNumberIsWrong) {
  for (const std::vector<std::string>& implementations :
       {std::vector<std::string>(), {"flashstep"}}) {
    EXPECT_EQ(fault_of(doubled, no_memory, implementations), "");
    EXPECT_NE(fault_of(no_number, no_memory, implementations), "");
  }
}

}  // namespace
}  // namespace flashstep::tools
