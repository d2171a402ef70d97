#include "flashstep/base/unfinished.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace flashstep {
namespace {

std::array<std::atomic<char*>, 64> g_paths;

}  // namespace

Unfinished::Unfinished(const char* path) : path_(::strdup(path)) {
  if (path_ == nullptr) return;
  for (int place = 0; place < static_cast<int>(g_paths.size()); ++place) {
    char* none = nullptr;
    if (!g_paths[place].compare_exchange_strong(none, path_)) continue;
    place_ = place;
    return;
  }
}

// Whoever takes a name from its place owns it: a handler may hold this one.
Unfinished::~Unfinished() {
  if (place_ < 0 || g_paths[place_].exchange(nullptr) == path_) std::free(path_);
}

bool Unfinished::remove_all() {
  bool any = false;
  for (std::atomic<char*>& place : g_paths) {
    const char* path = place.exchange(nullptr);
    if (path != nullptr) any = ::unlink(path) == 0 || any;
  }
  return any;
}

}  // namespace flashstep
