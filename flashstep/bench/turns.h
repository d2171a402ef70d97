// Implementations that take turns on the same inputs in this process (or behind a pipe).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "flashstep/bench/record.h"
#include "flashstep/bench/timing.h"

namespace flashstep::tools {

struct TurnOptions {
  double cell_seconds =
      0.03;  // timed, of one implementation in one pass, if that makes enough samples
  double warmup_seconds = 0.003;
  int64_t turns = 3;
  int64_t least_samples = 3, most_samples = 60;
  double sample_seconds = 1e-4;  // a sample is as many calls as take this long
  int64_t warmup_calls = 0;      // with `calls`: untimed
  int64_t calls = 0;             // > 0: exactly so many samples of one call each
};

// One way to compute one case. What it throws ends its part in the case.
class Implementation {
 public:
  virtual ~Implementation() = default;

  // Holds it against what is right, once, before anything is timed.
  virtual void check() {}
  // What check() found, into the record of a pass: facts, or a fault.
  virtual void note(const std::string& /*pass*/, Record& /*record*/) const {}

  // Seconds a call, of `samples` samples of `calls` calls each, after `warmup` calls that are not
  // timed.
  virtual std::vector<double> turn(const std::string& pass, int64_t warmup, int64_t samples,
                                   int64_t calls) = 0;
  // The same through a CUDA graph of `calls` calls; empty where there is none.
  virtual std::vector<double> graph(const std::string& /*pass*/, int64_t /*samples*/,
                                    int64_t /*calls*/) {
    return {};
  }
};

struct Candidate {
  std::string name;
  bool ours = false;
  std::function<std::unique_ptr<Implementation>()> make;
};

struct TurnsCase {
  Fields key;
  std::string what;
  std::vector<std::string> passes;  // each is one more field of the key, "pass"
};

// A record for each pass and candidate: samples "seconds" and "graph", of a call; the fact "no
// graph" says why there is none where one was tried. `prepare` makes what all need, before any is
// made; what goes wrong there nobody can do, what goes wrong in one pass leaves the others be.
// Throws Interrupted when a signal came.
std::vector<Record> take_turns(const TurnsCase& c, const std::vector<Candidate>& candidates,
                               const at::Device& device, const TurnOptions& options,
                               const std::function<void()>& prepare = nullptr);

// "cpu", or "cuda" where there is a GPU; UserError, which begins with `command`, without one.
at::Device bench_device(const std::string& command, const std::string& name);
// "fp32", "bf16", "fp16".
at::ScalarType scalar_type(const std::string& dtype);
int64_t element_bytes(const std::string& dtype);
// The stream that work is measured on; none on a CPU.
std::unique_ptr<GpuStream> stream_of(const at::Device& device);

// How many sets of inputs of so many bytes are together twice the last cache, at most 16: where a
// case is so large that its inputs come from memory in a program, they do in turns of those too.
int64_t sets_beyond_cache(double bytes, const at::Device& device);

}  // namespace flashstep::tools
