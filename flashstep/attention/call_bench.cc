// What a call of attention() costs beside SDPA's where there is next to nothing to compute: checks,
// the choice of a kernel, dispatch, autograd. One thread, (1, 4, N, 64), fp32, causal.
#include <cstdio>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "flashstep/attention.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/stats.h"

namespace flashstep {
namespace {

constexpr int kTurns = 21, kCalls = 2000;

struct Inputs {
  at::Tensor q, k, v;
};

at::Tensor ours(const Inputs& in) { return attention(in.q, in.k, in.v, {.causal = true}); }
at::Tensor theirs(const Inputs& in) {
  return at::scaled_dot_product_attention(in.q, in.k, in.v, {}, 0.0, /*is_causal=*/true);
}

template <typename Call>
double microseconds(const Inputs& in, bool backward, Call call) {
  const double start = measure::steady_seconds();
  for (int i = 0; i < kCalls; ++i) {
    const at::Tensor out = call(in);
    if (backward) out.sum().backward();
  }
  return (measure::steady_seconds() - start) / kCalls * 1e6;
}

void compare(int64_t length, bool backward) {
  const auto make = [&] { return at::randn({1, 4, length, 64}).requires_grad_(backward); };
  const Inputs in{make(), make(), make()};
  std::vector<double> own, other;
  for (int turn = 0; turn < kTurns; ++turn) {  // in turns; the first warms up
    own.push_back(microseconds(in, backward, ours));
    other.push_back(microseconds(in, backward, theirs));
  }
  own.erase(own.begin());
  other.erase(other.begin());
  std::printf("N %3lld%s  attention %6.1f us  SDPA %6.1f us\n", static_cast<long long>(length),
              backward ? ", with backward" : "               ", measure::median(own),
              measure::median(other));
}

}  // namespace
}  // namespace flashstep

int main() {
  at::set_num_threads(1);
  for (const int64_t length : {1, 16, 128}) {
    for (const bool backward : {false, true}) flashstep::compare(length, backward);
  }
}
