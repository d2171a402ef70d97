#include "flashstep/train/bigram_loss.h"

#include <string>

#include <nlohmann/json.hpp>

#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/data/bigram.h"
#include "flashstep/detail/files.h"

namespace flashstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

double count(const TokenFile& train, const TokenFile& validation, int64_t vocab_size, bool quiet) {
  constexpr const char* kStopped = "[train] stopped before the first step";
  if (quiet) {
    return bigram_cross_entropy(train, validation, vocab_size, interruptible({}, kStopped));
  }
  ProgressBar bar("bigram model", ProgressBar::Unit::kCount);
  const double loss =
      bigram_cross_entropy(train, validation, vocab_size, interruptible(bar.callback(), kStopped));
  bar.finish();
  return loss;
}

}  // namespace

double bigram_loss_of_run(const std::filesystem::path& path, const TokenFile& train,
                          const TokenFile& validation, int64_t vocab_size, bool quiet) {
  const OrderedJson key = {{"train", train.fingerprint()},
                           {"validation", validation.fingerprint()},
                           {"vocab_size", vocab_size}};
  if (std::filesystem::exists(path)) {
    const OrderedJson kept =
        OrderedJson::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    // Anything else, damage included, is counted anew.
    if (kept.is_object() && kept.value("of", OrderedJson()) == key && kept.contains("loss") &&
        kept["loss"].is_number()) {
      return kept["loss"].get<double>();
    }
  }
  const double loss = count(train, validation, vocab_size, quiet);
  write_file(path, OrderedJson({{"of", key}, {"loss", loss}}).dump(2) + "\n");
  return loss;
}

}  // namespace flashstep
