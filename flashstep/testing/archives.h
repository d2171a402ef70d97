// What an optimizer saves, and loads again.
#pragma once

#include <sstream>
#include <string>

#include <torch/optim/optimizer.h>

namespace flashstep::testing {

inline std::string archive_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

inline void load_archive(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  optimizer.load(archive);
}

}  // namespace flashstep::testing
