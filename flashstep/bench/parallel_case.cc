#include "flashstep/bench/parallel_case.h"

#include <algorithm>
#include <sstream>

#include "flashstep/base/text.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

bool has_buckets(const std::string& wrapper) { return wrapper == "bucketed" || wrapper == "torch"; }

}  // namespace

void ParallelCase::visit(FieldVisitor& v) {
  Workload::visit(v);
  v.field("ranks", ranks, {1, int64_t{1} << 31}, "processes");
}

std::vector<ParallelCase> cases_of(const ParallelAxes& axes) {
  std::vector<ParallelCase> cases;
  for (const Workload& workload : workloads_of(axes)) {
    for (const int64_t ranks : axes.ranks) cases.push_back({workload, ranks});
  }
  return cases;
}

std::string describe(const ParallelCase& c) {
  return str(model_name(c.model), ", ", c.ranks, c.ranks == 1 ? " rank" : " ranks", ", batch ",
             c.batch_size, ", context ", c.model.context_length, ", ", c.precision);
}

std::string file_stem(const ParallelCase& c) {
  return str(without_slashes(model_name(c.model)), "_", c.ranks, "x", c.batch_size, "x",
             c.model.context_length, "_", c.precision);
}

Record blank_of(const ParallelCase& c, const std::string& implementation) {
  return {.key = {{"model", model_name(c.model)},
                  {"ranks", c.ranks},
                  {"batch", c.batch_size},
                  {"context", c.model.context_length},
                  {"precision", c.precision}},
          .what = describe(c),
          .implementation = implementation};
}

Schema parallel_schema() {
  return {text_key("model"), integer_key("ranks"), integer_key("batch"), integer_key("context"),
          text_key("precision")};
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
  if (!is_chosen || !(bucket_megabytes > 0)) return name;
  return str(division.wrapper, ' ', fixed(bucket_megabytes, 0), " MB (chosen)",
             division.peer_copies == "none" ? " nccl" : "");
}

}  // namespace flashstep::tools
