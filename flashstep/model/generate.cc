#include "flashstep/model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "flashstep/base/rng.h"
#include "flashstep/error.h"
#include "flashstep/model/decoder.h"
#include "flashstep/ops/recorded_work.h"

namespace flashstep {
namespace {

void check(const ModelConfig& config, std::span<const int64_t> prompt,
           const GenerateOptions& options) {
  require(!prompt.empty(), "[generate] expected a prompt of at least one token, got none");
  for (const int64_t id : prompt) {
    require(id >= 0 && id < config.vocab_size, "[generate] expected token ids in [0, ",
            config.vocab_size, "), got ", id);
  }
  require(options.max_tokens >= 0, "[generate] expected max_tokens >= 0, got ", options.max_tokens);
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          "[generate] expected temperature >= 0, got ", options.temperature);
  require(options.top_k >= 0, "[generate] expected top_k >= 0, got ", options.top_k);
  require(options.top_p > 0 && options.top_p <= 1, "[generate] expected top_p in (0, 1], got ",
          options.top_p);
}

// The model's view of the text: the tokens in its window and, unless caching is off, their keys and
// values.
class Window {
 public:
  // For a text of at most so many tokens in all.
  Window(Transformer& model, const GenerateOptions& options, int64_t tokens)
      : model_(model), options_(options) {
    if (!options.use_cache) return;
    if (Decoder::takes(model)) stream_.emplace(model->lm_head->weight.device());
    const int64_t room = std::min(tokens, model->config().context_length);
    cache_.emplace(model->config(), 1, room, model->lm_head->weight.options());
    if (stream_) decoder_.emplace(model, *cache_, options);
  }

  void add(int64_t token) {
    const auto& config = model_->config();
    const auto limit = static_cast<size_t>(config.context_length);
    const bool ended = !tokens_.empty() && tokens_.back() == config.document_end;
    if (ended) {  // a document begins, which sees nothing of the one before
      tokens_.clear();
      if (cache_) cache_->clear();
    } else if (tokens_.size() == limit) {
      tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<int64_t>(limit / 2));
      if (cache_) cache_->clear();
    }
    tokens_.push_back(token);
  }

  // What comes after the last token.
  int64_t next(double uniform) {
    const int64_t known = cache_ ? cache_->length() : 0;
    const auto fresh = at::ArrayRef<int64_t>(tokens_).slice(known);
    if (decoder_ && fresh.size() == 1) return decoder_->next(fresh.front(), uniform);
    const at::NoGradGuard no_grad;
    const auto hidden = model_->hidden(
        at::tensor(fresh, at::kLong).unsqueeze(0).to(model_->lm_head->weight.device()),
        cache_ ? &*cache_ : nullptr);
    const auto logits =
        model_->lm_head->forward(hidden.select(1, -1)).flatten().to(at::kCPU, at::kFloat);
    return sample(std::span(logits.const_data_ptr<float>(), logits.numel()), options_, uniform);
  }

 private:
  Transformer& model_;
  const GenerateOptions& options_;
  std::vector<int64_t> tokens_;
  std::optional<GpuStream> stream_;  // the decoder's
  std::optional<KeyValueCache> cache_;
  std::optional<Decoder> decoder_;
};

}  // namespace

int64_t sample(std::span<const float> logits, const GenerateOptions& options, double uniform) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id])) {  // no order: sorting them is undefined
      throw NotNumbers(str("[generate] expected numbers as the model's logits, got NaN for token ",
                           id, ", as from the weights of a run that diverged"));
    }
  }
  // By falling probability; the likeliest is at a heap's front.
  const auto is_behind = [&](int64_t a, int64_t b) {
    return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
  };
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const int64_t likeliest = *std::max_element(ids.begin(), ids.end(), is_behind);
  if (options.temperature == 0) return likeliest;
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(ids.size())) {
    const auto kept = ids.begin() + options.top_k;
    std::partial_sort(ids.begin(), kept, ids.end(),
                      [&](int64_t a, int64_t b) { return is_behind(b, a); });
    ids.erase(kept, ids.end());
  }

  const double largest = logits[likeliest];
  const auto weight = [&](int64_t id) {
    const double logit = logits[id];
    return logit == largest ? 1.0 : std::exp((logit - largest) / options.temperature);
  };
  double total = 0;
  for (const int64_t id : ids) total += weight(id);
  // A heap, not a sort: few of a large vocabulary are looked at.
  std::make_heap(ids.begin(), ids.end(), is_behind);
  std::vector<int64_t> taken;
  const auto take = [&] {
    std::pop_heap(ids.begin(), ids.end(), is_behind);
    taken.push_back(ids.back());
    ids.pop_back();
    return weight(taken.back());
  };
  double reach = total;  // weight of the tokens that top_p keeps
  if (options.top_p < 1) {
    reach = 0;
    while (!ids.empty() && (taken.empty() || reach < options.top_p * total)) reach += take();
  }
  double rest = uniform * reach;
  for (const int64_t id : taken) {
    rest -= weight(id);
    if (rest < 0) return id;
  }
  while (options.top_p == 1 && !ids.empty()) {
    rest -= take();
    if (rest < 0) break;
  }
  return taken.back();
}

std::vector<int64_t> generate(Transformer& model, std::span<const int64_t> prompt,
                              const GenerateOptions& options) {
  check(model->config(), prompt, options);
  Rng rng(options.seed);
  const auto given = static_cast<int64_t>(prompt.size());
  const int64_t context = model->config().context_length;  // more is not kept
  if (given > context) prompt = prompt.last(context);
  Window window(model, options, given + std::min(options.max_tokens, context));
  for (const int64_t token : prompt) window.add(token);
  std::vector<int64_t> generated;
  while (static_cast<int64_t>(generated.size()) < options.max_tokens) {
    const int64_t token = window.next(rng.uniform());
    if (options.stop_token && token == *options.stop_token) break;
    generated.push_back(token);
    if (options.on_token && !options.on_token(token)) break;
    window.add(token);
  }
  return generated;
}

}  // namespace flashstep
