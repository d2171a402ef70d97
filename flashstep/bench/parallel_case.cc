#include "flashstep/bench/parallel_case.h"

#include <algorithm>
#include <sstream>

#include "flashstep/base/text.h"
#include "flashstep/bench/workload.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

constexpr int64_t kMostOfCase = int64_t{1} << 31;

bool has_buckets(const std::string& wrapper) { return wrapper == "bucketed" || wrapper == "torch"; }

}  // namespace

void ParallelCase::visit(FieldVisitor& v) {
  v.field("model", model, {}, "a named size, or d_model/d_ff/layers/heads");
  v.field("vocab_size", vocab_size, {0, kMostOfCase}, "tokens in the vocabulary");
  v.field("batch_size", batch_size, {1, kMostOfCase}, "rows of one rank");
  v.field("context_length", context_length, {0, kMostOfCase}, "tokens of a row");
  v.field("precision", precision, {"fp32", "bf16"}, "bf16: autocast");
  v.field("attention", attention, {}, "implementation of attention");
  v.field("ranks", ranks, {1, kMostOfCase}, "processes");
  v.field("device", device, {"cpu", "cuda"}, "where ranks compute");
  v.field("backend", backend, {"gloo", "nccl"}, "how they communicate");
}

ModelConfig model_of(const ParallelCase& c) {
  ModelConfig config = model_by_name(c.model);
  if (c.vocab_size > 0) config.vocab_size = c.vocab_size;
  config.context_length = c.context_length;
  config.attention = c.attention;
  return resolved_model(config);
}

Workload workload_of(const ParallelCase& c) {
  Workload workload;
  workload.model = model_of(c);
  workload.batch_size = c.batch_size;
  workload.precision = c.precision;
  workload.device = c.device;
  return workload;
}

std::vector<ParallelCase> cases_of(const ParallelAxes& axes) {
  std::vector<ParallelCase> cases;
  for (const std::string& model : axes.models) {
    for (const int64_t context : axes.contexts) {
      for (const std::string& precision : axes.precisions) {
        for (const int64_t ranks : axes.ranks) {
          ParallelCase c;
          c.model = model;
          c.vocab_size = axes.vocab_size;
          c.batch_size = axes.batch_size;
          c.context_length = context;
          c.precision = precision;
          c.attention = axes.attention;
          c.ranks = ranks;
          c.device = axes.device;
          c.backend = axes.device == "cuda" ? "nccl" : "gloo";
          c.context_length = model_of(c).context_length;  // says what is wrong before anything runs
          cases.push_back(c);
        }
      }
    }
  }
  require(!cases.empty(),
          "[bench] expected models, contexts, precisions and ranks, got none of one");
  return cases;
}

std::string describe(const ParallelCase& c) {
  return str(c.model, ", ", c.ranks, c.ranks == 1 ? " rank" : " ranks", ", batch ", c.batch_size,
             ", context ", c.context_length, ", ", c.precision);
}

std::string file_stem(const ParallelCase& c) {
  std::string stem =
      str(c.model, "_", c.ranks, "x", c.batch_size, "x", c.context_length, "_", c.precision);
  for (char& letter : stem) letter = letter == '/' ? '-' : letter;
  return stem;
}

ParallelConfig division_by_name(const std::string& name) {
  ParallelConfig division;
  std::istringstream in(name);
  in >> division.wrapper;
  if (division.wrapper != "none") strategy_by_name(division.wrapper);
  if (has_buckets(division.wrapper)) {
    require(static_cast<bool>(in >> division.bucket_megabytes) && division.bucket_megabytes >= 0,
            "[bench] expected ", division.wrapper,
            " with the megabytes of a bucket (0: chosen), got \"", name, "\"");
  }
  if (std::string transport; in >> transport) {
    require(division.wrapper == "bucketed" && transport == "nccl",
            "[bench] expected \"bucketed 25 nccl\" or a name without a transport, got \"", name,
            "\"");
    division.peer_copies = "none";
  }
  return division;
}

std::vector<std::string> division_names(const std::vector<std::string>& wrappers,
                                        const std::vector<double>& bucket_megabytes) {
  std::vector<std::string> names;
  for (const std::string& wrapper : wrappers) {
    const size_t end = std::min(wrapper.find(' '), wrapper.size());
    const std::string first = wrapper.substr(0, end), transport = wrapper.substr(end);
    if (!has_buckets(first)) {
      names.push_back(wrapper);
      continue;
    }
    for (const double megabytes : bucket_megabytes)
      names.push_back(str(first, ' ', megabytes, transport));
  }
  for (const std::string& name : names) division_by_name(name);
  return names;
}

void check_transports(const std::vector<std::string>& names, const std::string& device) {
  for (const std::string& name : names) {
    require(device == "cuda" || !name.ends_with(" nccl"), "[bench] expected GPUs for \"", name,
            "\", got --device ", device, ", where Gloo carries everything");
  }
}

std::string shown_name(const std::string& name, double bucket_megabytes) {
  const ParallelConfig division = division_by_name(name);
  const bool is_chosen = has_buckets(division.wrapper) && division.bucket_megabytes == 0;
  if (!is_chosen || bucket_megabytes <= 0) return name;
  return str(division.wrapper, ' ', fixed(bucket_megabytes, 0), " MB (chosen)",
             division.peer_copies == "none" ? " nccl" : "");
}

}  // namespace flashstep::tools
