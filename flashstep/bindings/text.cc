// Tokenizers and batches for Python. Texts are UTF-8; tokens, which need not be, travel as bytes.
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "flashstep/base/called_back.h"
#include "flashstep/base/places.h"
#include "flashstep/bindings/border.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/data.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer.h"
#include "flashstep/train/prepare_data.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;
using Paths = std::vector<std::filesystem::path>;

Tensor bytes_tensor(std::string_view bytes) {  // (n) uint8
  Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr<uint8_t>(), bytes.data(), bytes.size());
  return tensor;
}

// Ctrl-C ends what tells its progress.
void stop_if_wanted(uint64_t /*done*/, uint64_t /*total*/) {
  const WantsToStop asked = wants_to_stop();
  if (asked != nullptr && asked()) throw Interrupted(SIGINT, "[tokenizer] interrupted");
}

Paths paths_of(const std::vector<std::string>& files) { return {files.begin(), files.end()}; }

class TokenizerObject : public torch::CustomClassHolder {
 public:
  explicit TokenizerObject(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::vector<int64_t> encode(std::string text) {
    const std::vector<uint32_t> ids = tokenizer_.encode(text);
    return {ids.begin(), ids.end()};
  }
  Tensor decode(std::vector<int64_t> ids) {
    std::vector<uint32_t> narrow;
    narrow.reserve(ids.size());
    for (const int64_t id : ids) {
      require(id >= 0 && id < tokenizer_.vocab_size(), "[tokenizer] expected ids in [0, ",
              tokenizer_.vocab_size(), "), got ", id);
      narrow.push_back(static_cast<uint32_t>(id));
    }
    return bytes_tensor(tokenizer_.decode(narrow));
  }
  int64_t encode_to_file(std::vector<std::string> files, std::string path, int64_t threads) {
    for (const std::string& file : files) require_other_file(file, path);
    EncodeOptions options;
    options.threads = static_cast<int>(threads);
    options.progress = stop_if_wanted;
    return static_cast<int64_t>(
        flashstep::encode_to_file(tokenizer_, paths_of(files), path, options));
  }
  // Tokens by id one behind the other, their lengths, the ids of merges' pairs, those of special
  // tokens, split_digits, lacks_bytes, pattern, ignore_merges, bos_id (-1: none), shown_ids.
  std::tuple<Tensor, std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, bool, bool,
             std::string, bool, int64_t, std::vector<int64_t>>
  parts() {
    const Vocabulary& vocabulary = tokenizer_.vocabulary();
    std::string bytes;
    std::vector<int64_t> lengths, merges;
    for (const std::string& token : vocabulary.tokens) {
      bytes += token;
      lengths.push_back(static_cast<int64_t>(token.size()));
    }
    for (const auto& [left, right] : vocabulary.merges) {
      merges.push_back(left);
      merges.push_back(right);
    }
    return {bytes_tensor(bytes),
            lengths,
            merges,
            {vocabulary.special_ids.begin(), vocabulary.special_ids.end()},
            vocabulary.split_digits,
            vocabulary.lacks_bytes,
            name_of(vocabulary.pattern),
            vocabulary.ignore_merges,
            vocabulary.bos_id ? int64_t{*vocabulary.bos_id} : -1,
            {vocabulary.shown_ids.begin(), vocabulary.shown_ids.end()}};
  }
  void save(std::string directory) { tokenizer_.save(directory); }

 private:
  const Tokenizer tokenizer_;
};

c10::intrusive_ptr<TokenizerObject> make_tokenizer(
    const Tensor& bytes, std::vector<int64_t> lengths, std::vector<int64_t> merges,
    std::vector<int64_t> special_ids, bool split_digits, bool lacks_bytes, std::string pattern,
    bool ignore_merges, int64_t bos_id, std::vector<int64_t> shown_ids) {
  int64_t left = bytes.numel();
  for (const int64_t length : lengths) {
    require(length >= 0, "[tokenizer] expected lengths of tokens of at least 0, got ", length);
    require(length <= left, "[tokenizer] expected tokens of ", bytes.numel(),
            " bytes together, got lengths of more");
    left -= length;
  }
  require(left == 0, "[tokenizer] expected tokens of ", bytes.numel(),
          " bytes together, got lengths of ", bytes.numel() - left);
  Vocabulary vocabulary;
  const Tensor all = bytes.cpu().contiguous();
  const char* next = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (const int64_t length : lengths) {
    vocabulary.tokens.emplace_back(next, static_cast<size_t>(length));
    next += length;
  }
  for (size_t i = 0; i + 1 < merges.size(); i += 2) {
    vocabulary.merges.emplace_back(static_cast<uint32_t>(merges[i]),
                                   static_cast<uint32_t>(merges[i + 1]));
  }
  vocabulary.special_ids.assign(special_ids.begin(), special_ids.end());
  vocabulary.split_digits = split_digits;
  vocabulary.lacks_bytes = lacks_bytes;
  vocabulary.pattern = word_pattern_by_name(pattern);
  vocabulary.ignore_merges = ignore_merges;
  if (bos_id >= 0) vocabulary.bos_id = static_cast<uint32_t>(bos_id);
  vocabulary.shown_ids.assign(shown_ids.begin(), shown_ids.end());
  return c10::make_intrusive<TokenizerObject>(Tokenizer(std::move(vocabulary)));
}

c10::intrusive_ptr<TokenizerObject> load_tokenizer(std::string path) {
  return c10::make_intrusive<TokenizerObject>(Tokenizer::load(path));
}

c10::intrusive_ptr<TokenizerObject> train_tokenizer(std::vector<std::string> files,
                                                    int64_t vocab_size,
                                                    std::vector<std::string> special_tokens,
                                                    std::string pattern, bool split_digits,
                                                    int64_t threads) {
  BpeOptions options;
  options.vocab_size = vocab_size;
  options.special_tokens = std::move(special_tokens);
  options.pattern = word_pattern_by_name(pattern);
  options.split_digits = split_digits;
  options.threads = static_cast<int>(threads);
  options.progress = options.merge_progress = stop_if_wanted;
  return c10::make_intrusive<TokenizerObject>(train_bpe(paths_of(files), options));
}

// Batches of a token file, or of ids in memory.
class BatchesObject : public torch::CustomClassHolder {
 public:
  BatchesObject(const std::string& path, const BatchOptions& options)
      : file_(std::make_unique<TokenFile>(path)), sampler_(std::in_place, *file_, options) {}
  BatchesObject(Tensor tokens, const BatchOptions& options)
      : tokens_(std::move(tokens)),
        order_(std::in_place, static_cast<uint64_t>(tokens_.numel()), options, "tokens") {}

  std::tuple<Tensor, Tensor> at(int64_t step) {
    require(step >= 0, "[BatchSampler] expected a step of at least 0, got ", step);
    if (sampler_) {
      const Batch batch = sampler_->at(step);
      return {batch.inputs, batch.targets};
    }
    const int64_t rows = order_->options().batch_size, context = order_->options().context_length;
    const Tensor inputs = at::empty({rows, context}, at::kLong);
    const Tensor targets = at::empty({rows, context}, at::kLong);
    for (int64_t row = 0; row < rows; ++row) {
      const auto start = static_cast<int64_t>(order_->start(step, 0, row));
      inputs[row].copy_(tokens_.narrow(0, start, context));
      targets[row].copy_(tokens_.narrow(0, start + 1, context));
    }
    const auto least = std::min(inputs.min().item<int64_t>(), targets.min().item<int64_t>());
    require(least >= 0, "[BatchSampler] expected token ids of at least 0, got ", least);
    return {inputs, targets};
  }

 private:
  std::unique_ptr<TokenFile> file_;
  Tensor tokens_;
  std::optional<BatchSampler> sampler_;
  std::optional<BatchOrder> order_;
};

// Of the file where `tokens` is not given.
c10::intrusive_ptr<BatchesObject> make_batches(std::optional<Tensor> tokens, std::string path,
                                               int64_t batch_size, int64_t context_length,
                                               int64_t seed, std::string order, int64_t rank,
                                               int64_t world_size) {
  BatchOptions options;
  options.batch_size = batch_size;
  options.context_length = context_length;
  options.seed = static_cast<uint64_t>(seed);
  options.order = order_by_name(order);
  options.rank = rank;
  options.world_size = world_size;
  if (!tokens) return c10::make_intrusive<BatchesObject>(path, options);
  require(tokens->dim() == 1 && at::isIntegralType(tokens->scalar_type(), /*includeBool=*/false) &&
              tokens->is_cpu(),
          "[BatchSampler] expected a vector of whole numbers on the CPU, got ", tokens->sizes(),
          " of ", tokens->scalar_type());
  return c10::make_intrusive<BatchesObject>(*tokens, options);
}

}  // namespace

void register_text(torch::Library& library) {
  library.class_<TokenizerObject>("Tokenizer")
      .def(torch::init(for_python(&make_tokenizer)))
      .def_static("load", for_python(&load_tokenizer))
      .def_static("train", for_python(&train_tokenizer))
      .def("encode", for_python(&TokenizerObject::encode))
      .def("decode", for_python(&TokenizerObject::decode))
      .def("encode_files", for_python(&TokenizerObject::encode_to_file))
      .def("parts", for_python(&TokenizerObject::parts))
      .def("save", for_python(&TokenizerObject::save));
  library.class_<BatchesObject>("Batches")
      .def(torch::init(for_python(&make_batches)))
      .def("at", for_python(&BatchesObject::at));
}

}  // namespace flashstep::bindings
