#include "flashstep/report/bench_attention_compiled.h"

#include <filesystem>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/serialize.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/python_peer.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;

class TemporaryFile {
 public:
  TemporaryFile()
      : path_(std::filesystem::temp_directory_path() /
              str("flashstep_attention_peer_", ::getpid(), ".pt")) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

class CompiledAttention : public AttentionImplementation {
 public:
  CompiledAttention(std::shared_ptr<PythonPeer> python, const AttentionRound& round)
      : python_(std::move(python)), device_(round.device) {
    const AttentionCase& c = round.c;
    case_ = {{"device", device_.is_cuda() ? "cuda" : "cpu"},
             {"dtype", c.dtype},
             {"shape", {c.batch, std::max<int64_t>(c.heads, 1), c.n, c.head_dim}},
             {"keys", c.m},
             {"causal", c.causal},
             {"seed", round.seed},
             {"sets", round.inputs.size()},
             {"threads", at::get_num_threads()}};
  }

  AttentionOutcome outcome(bool gradients) override {
    const TemporaryFile file;
    Json request = case_;
    request.update({{"do", "outcome"}, {"gradients", gradients}, {"file", file.path()}});
    python_->ask(request);
    const std::string bytes = read_file(file.path());
    const auto list = torch::pickle_load({bytes.begin(), bytes.end()}).toList();
    AttentionOutcome outcome;
    for (size_t i = 0; i < list.size() && i < outcome.size(); ++i)
      outcome[i] = list.get(i).toTensor().to(device_);
    return outcome;
  }

  std::vector<double> turn(const std::string& pass, int64_t warmup, int64_t samples,
                           int64_t calls) override {
    Json request = case_;
    request.update({{"do", pass}, {"warmup", warmup}, {"samples", samples}, {"calls", calls}});
    return python_->ask(request).at("seconds").get<std::vector<double>>();
  }

 private:
  std::shared_ptr<PythonPeer> python_;
  at::Device device_;
  Json case_;
};

}  // namespace

AttentionCandidate compiled_candidate(const std::vector<std::string>& command) {
  auto python = std::make_shared<PythonPeer>(command);
  return {"compiled", false,
          [python](const AttentionRound& round) {
            return std::make_unique<CompiledAttention>(python, round);
          },
          nullptr};
}

}  // namespace flashstep::report
