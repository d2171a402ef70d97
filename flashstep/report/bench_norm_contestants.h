// Who is measured in `flashstep bench norm`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/report/bench_norm.h"

namespace flashstep::report {

constexpr double kNormEpsilon = 1e-5;

// Leaves of a graph for backward: x (R, C), weight (C), bias (C, LayerNorm's), and dy (R, C).
struct NormInputs {
  at::Tensor x, weight, bias, dy;
};
NormInputs norm_inputs(const NormCase& c, const at::Device& device);

struct NormErrors {
  double y = 0, gradients = 0;
};

// One way to compute one norm. What it throws ends its part in the case.
class NormContestant {
 public:
  virtual ~NormContestant() = default;
  virtual NormErrors errors() = 0;
  // Seconds of each of `calls` calls, after `warmup` that are not timed.
  virtual std::vector<double> seconds(const std::string& pass, int64_t warmup, int64_t calls) = 0;
};

// By name, on inputs that outlive it. `peer` is Python, started when it is first needed.
class NormPeer;
std::unique_ptr<NormContestant> make_norm_contestant(const std::string& name, const NormCase& c,
                                                     const NormInputs& inputs, NormPeer& peer);

// The Python process, which serves all cases.
class NormPeer {
 public:
  explicit NormPeer(std::vector<std::string> command);
  ~NormPeer();
  NormPeer(const NormPeer&) = delete;
  NormPeer& operator=(const NormPeer&) = delete;

  // One JSON object there, one back. MachineError when there is none, with its reason.
  std::string ask(const std::string& request);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flashstep::report
