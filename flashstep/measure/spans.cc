#include "flashstep/measure/spans.h"

#include <algorithm>

namespace flashstep::measure {

std::vector<Span> merged(std::vector<Span> spans, double gap) {
  std::erase_if(spans, [](const Span& span) { return !(span.begin < span.end); });
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> result;
  for (const Span& span : spans) {
    if (!result.empty() && span.begin <= result.back().end + gap) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

double covered_seconds(const std::vector<Span>& spans) {
  double seconds = 0;
  for (const Span& span : merged(spans)) seconds += span.end - span.begin;
  return seconds;
}

double shared_seconds(const std::vector<Span>& a, const std::vector<Span>& b) {
  const std::vector<Span> first = merged(a), second = merged(b);
  double seconds = 0;
  for (size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    const double begin = std::max(first[i].begin, second[j].begin);
    const double end = std::min(first[i].end, second[j].end);
    seconds += std::max(end - begin, 0.0);
    if (first[i].end < second[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return seconds;
}

}  // namespace flashstep::measure
