// See README.md.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

// Base of c10d's GlooStore, which LibTorch makes for itself.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous
