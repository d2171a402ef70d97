#include "flashstep/report/trace_record.h"

#include <cmath>

namespace flashstep::report {
namespace {

using measure::Span;

std::vector<double> ends_of(const std::vector<Span>& spans) {
  std::vector<double> ends;
  for (const Span& span : spans) {
    ends.push_back(std::round(span.begin * 1e7) * 1e-7);  // Kineto's own grain is finer
    ends.push_back(std::round(span.end * 1e7) * 1e-7);
  }
  return ends;
}

std::vector<Span> spans_of(const std::vector<double>& ends) {
  std::vector<Span> spans;
  for (size_t i = 0; i + 1 < ends.size(); i += 2) spans.push_back({ends[i], ends[i + 1]});
  return spans;
}

}  // namespace

void put_trace(const Trace& trace, Record& record) {
  if (!trace.failure.empty()) {
    record.facts["trace trouble"] = trace.failure;
    return;
  }
  record.samples["compute spans"] = ends_of(trace.compute);
  record.samples["copies spans"] = ends_of(trace.copies);
  record.samples["communication spans"] = ends_of(trace.communication);
  record.facts["computing"] = trace.compute_seconds();
  record.facts["communication"] = trace.communication_seconds();
  record.facts["exposed"] = trace.exposed_seconds();
  record.facts["busy"] = trace.busy_seconds();
  record.facts["launches"] = trace.communication.size();
  if (trace.communication_seconds() > 0) record.facts["hidden"] = trace.hidden_share();
}

Trace trace_of(const Record& record) {
  return {spans_of(record.series("compute spans")), spans_of(record.series("copies spans")),
          spans_of(record.series("communication spans")), record.text("trace trouble")};
}

bool is_traced(const Record& record) { return record.facts.contains("communication"); }

}  // namespace flashstep::report
