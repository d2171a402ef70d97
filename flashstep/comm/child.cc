#include "flashstep/comm/child.h"

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <unistd.h>

#include "flashstep/comm/sockets.h"
#include "flashstep/error.h"

namespace flashstep {

FreePort::FreePort() : descriptor_(bind_shared(0)) {
  if (descriptor_ < 0) throw_errno(errno, "[launch] cannot take a free port of 127.0.0.1");
  number_ = port_of_socket(descriptor_);
}

FreePort::~FreePort() { close(descriptor_); }

Variables rank_variables(Variables base, int rank, int world_size, int port) {
  // Another launcher around this one has nothing to say about our ranks.
  for (auto entry = base.begin(); entry != base.end();) {
    entry = entry->first.starts_with("TORCHELASTIC_") ? base.erase(entry) : std::next(entry);
  }
  base["RANK"] = base["LOCAL_RANK"] = std::to_string(rank);
  base["WORLD_SIZE"] = base["LOCAL_WORLD_SIZE"] = std::to_string(world_size);
  base["MASTER_ADDR"] = "127.0.0.1";
  base["MASTER_PORT"] = std::to_string(port);
  base["FLASHSTEP_LAUNCH"] = "1";
  return base;
}

bool is_anyone_in(const std::set<pid_t>& groups) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    if (std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0])) == 0)
      continue;
    std::ifstream file(entry.path() / "stat");  // 4711 (any name) S 1 4711 ...
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));  // none: npos + 1 = 0
    char state = 'X';
    pid_t parent = 0, group = 0;
    fields >> state >> parent >> group;
    if (state != 'Z' && state != 'X' && groups.contains(group)) return true;
  }
  return false;
}

}  // namespace flashstep
