#include "flashstep/comm/peer_mean.h"

namespace flashstep {

std::unique_ptr<PeerMean> make_peer_mean(const Group& /*group*/, at::Device /*device*/,
                                         size_t /*bytes*/) {
  return nullptr;
}

}  // namespace flashstep
