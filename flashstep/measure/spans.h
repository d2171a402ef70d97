// Spans of time on one clock: how much they cover, and how much of it two kinds of work share.
#pragma once

#include <vector>

namespace flashstep::measure {

struct Span {
  double begin = 0, end = 0;  // seconds, begin <= end
  bool operator==(const Span&) const = default;
};

// The same time, as spans that neither overlap nor touch, in order; gaps of at most `gap` seconds
// are closed. Empty spans are left out, and what ends before it begins.
std::vector<Span> merged(std::vector<Span> spans, double gap = 0);

// Seconds in which at least one of the spans runs.
double covered_seconds(const std::vector<Span>& spans);

// Seconds in which both a span of `a` and one of `b` run.
double shared_seconds(const std::vector<Span>& a, const std::vector<Span>& b);

}  // namespace flashstep::measure
