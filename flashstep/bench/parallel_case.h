// What the benchmarks of data parallelism measure: one model, batch, context and precision on so
// many ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/detail/fields.h"
#include "flashstep/detail/model_config.h"
#include "flashstep/measure/table.h"
#include "flashstep/train/config.h"

namespace flashstep::tools {

struct Workload;  // workload.h

struct ParallelCase {
  std::string model = "xl";    // a named size, or "1600/6400/48/25": d_model/d_ff/layers/heads
  int64_t vocab_size = 0;      // 0: the named size's, 10,000 for others
  int64_t batch_size = 4;      // of one rank
  int64_t context_length = 0;  // 0: the named size's
  std::string precision = "fp32", attention = "auto";
  int64_t ranks = 2;
  std::string device = "cpu", backend = "gloo";
  void visit(FieldVisitor& visitor);
};

// The model of the case. UserError for a size that is no name and no four numbers.
ModelConfig model_of(const ParallelCase& c);
// What one rank computes of it.
Workload workload_of(const ParallelCase& c);

// Every combination of the lists, models first. An empty list of models, contexts, precisions or
// ranks leaves the case without: UserError.
struct ParallelAxes {
  std::vector<std::string> models = {"xl"};
  std::vector<int64_t> contexts = {128};
  std::vector<std::string> precisions = {"fp32"};
  std::vector<int64_t> ranks = {2};
  int64_t batch_size = 4, vocab_size = 0;
  std::string device = "cpu";  // gloo; or "cuda": nccl
  std::string attention = "auto";
};
std::vector<ParallelCase> cases_of(const ParallelAxes& axes);

std::string describe(const ParallelCase& c);   // "xl, 2 ranks, batch 4, context 512, bf16"
std::string file_stem(const ParallelCase& c);  // "xl_2x4x512_bf16", for names of files

// A wrapper in words: "none", "naive", "flat", "overlapped", "bucketed 25", "torch 25" (MB; 0:
// chosen), "bucketed 25 nccl" (parallel.peer_copies none). UserError for others.
ParallelConfig division_by_name(const std::string& name);
// Those of the wrappers ("bucketed", "bucketed nccl"), each that has buckets once for every size
// of them.
std::vector<std::string> division_names(const std::vector<std::string>& wrappers,
                                        const std::vector<double>& bucket_megabytes);
// UserError where a name asks for a transport ("... nccl") that the device has not: on a CPU Gloo
// carries everything.
void check_transports(const std::vector<std::string>& names, const std::string& device);
// The name for readers, once the size in use is known: "bucketed 126 MB (chosen)" where it was
// chosen, else the name itself.
std::string shown_name(const std::string& name, double bucket_megabytes);

}  // namespace flashstep::tools
