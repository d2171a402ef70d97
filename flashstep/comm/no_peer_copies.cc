#include "flashstep/comm/peer_copies.h"

namespace flashstep {

std::unique_ptr<PeerCopies> make_peer_copies(const Group& /*group*/, at::Device /*device*/) {
  return nullptr;
}

bool is_being_captured(at::Device /*device*/) { return false; }

}  // namespace flashstep
