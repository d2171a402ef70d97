// Rank 0 tells the others twice: where to write their shares, and how it ended; or only that it
// ended.
#include "flashstep/train/sharded_checkpoint.h"

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/parallel/named_tensors.h"
#include "flashstep/train/checkpoint_state.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// A path that is no UTF-8 is then seen by rank 0 only, who writes for all.
std::string text_of(const OrderedJson& message) {
  return message.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Lies in rank 0's directory while the shares are written, with a word of this save alone: on
// another disk a directory of the same name may have been left behind by an earlier job.
constexpr const char* kWordName = "word_of_rank_0";

std::string random_word() {
  std::random_device device;
  return str(device(), "-", device(), "-", device(), "-", device());
}

bool holds_word(const fs::path& directory, const std::string& word) {
  try {
    return read_file(directory / kWordName) == word;
  } catch (const std::exception&) {
    return false;  // a disk that cannot be read is none to write to
  }
}

// "00002-of-00004", as files of many parts are commonly numbered.
std::string part_name(int rank, int world_size) {
  char name[48];
  std::snprintf(name, sizeof name, "optimizer.%05d-of-%05d.safetensors", rank, world_size);
  return name;
}

OrderedJson failure(const std::exception& error) { return {{"error", error.what()}}; }

// Writes one file; returns its record, or why it could not be written.
OrderedJson try_write(const fs::path& directory, const std::string& name,
                      const NamedTensors& tensors) {
  try {
    const WrittenFile written = write_safetensors(directory / name, tensors, {{"format", "pt"}});
    return {{"name", name}, {"size_bytes", written.size_bytes}, {"hash", written.hash}};
  } catch (const std::exception& error) {
    return failure(error);
  }
}

// Copies on the host, so that handing them over cannot fail half-way.
NamedTensors on_host(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) {
    copies.emplace_back(name, tensor.detach().cpu().contiguous());
  }
  return copies;
}

// Every rank writes its share into rank 0's `directory`. All ranks call it and get everybody's
// records.
std::vector<std::string> write_shares(const fs::path& directory, const std::string& word,
                                      const NamedTensors& own, const Group& group) {
  OrderedJson records = OrderedJson::array();
  NamedTensors handed_over;
  if (holds_word(directory, word)) {
    records.push_back(try_write(directory, part_name(group.rank(), group.world_size()), own));
  } else {
    try {
      handed_over = on_host(own);
    } catch (const std::exception& error) {
      records.push_back(failure(error));
    }
  }
  const NamedTensors of_others = gather_tensors(handed_over, group, /*to=*/0);
  if (!of_others.empty()) {
    records.push_back(try_write(directory, "optimizer.others.safetensors", of_others));
  }
  return group.all_gather(text_of(records));
}

// What the ranks wrote, as rank 0 sees it.
std::vector<CheckpointFile> written_files(const fs::path& directory,
                                          const std::vector<std::string>& records_of_ranks) {
  std::vector<CheckpointFile> files;
  for (size_t rank = 0; rank < records_of_ranks.size(); ++rank) {
    for (const OrderedJson& record : OrderedJson::parse(records_of_ranks[rank])) {
      if (record.contains("error")) {
        throw MachineError(str("[checkpoint] rank ", rank,
                               " cannot write its share: ", record.at("error").get<std::string>()));
      }
      files.push_back({record.at("name"), "optimizer", record.at("size_bytes"), record.at("hash")});
      const CheckpointFile& file = files.back();
      std::error_code error;
      const uint64_t size_bytes = fs::file_size(directory / file.name, error);
      if (error || size_bytes != file.size_bytes) {
        throw MachineError(str("[checkpoint] rank ", rank, " wrote ", file.size_bytes, " bytes of ",
                               file.name, ", but rank 0 sees ",
                               error ? error.message() : str(size_bytes, " bytes"), " in ",
                               directory.string()));
      }
    }
  }
  return files;
}

void save_as_first(const fs::path& checkpoints, const Checkpoint& checkpoint, int64_t keep,
                   const Group& group) {
  const auto tell = [&](const OrderedJson& message) { group.broadcast(text_of(message), 0); };
  bool others_listen = true;  // and are not in the middle of an exchange
  const auto write_optimizer = [&](const fs::path& relative) {
    const fs::path directory = fs::absolute(relative);
    const std::string word = random_word();
    write_file(directory / kWordName, word);
    tell({{"directory", directory.string()}, {"word", word}});
    others_listen = false;
    const auto records = write_shares(directory, word, checkpoint.optimizer, group);
    others_listen = true;
    std::vector<CheckpointFile> files = written_files(directory, records);
    fs::remove(directory / kWordName);
    return files;
  };
  try {
    save_checkpoint(checkpoints, checkpoint, keep, write_optimizer);
  } catch (const std::exception& error) {
    if (others_listen) tell(failure(error));
    throw;
  }
  tell(OrderedJson::object());
}

void save_as_other(const NamedTensors& own, const Group& group) {
  const auto listen = [&] { return OrderedJson::parse(group.broadcast("", 0)); };
  OrderedJson message = listen();
  if (message.contains("directory")) {
    write_shares(message.at("directory").get<std::string>(), message.at("word"), own, group);
    message = listen();
  }
  if (message.contains("error")) {
    throw MachineError(
        str("[checkpoint] rank 0 could not save: ", message.at("error").get<std::string>()));
  }
}

}  // namespace

void save_checkpoint_together(const fs::path& checkpoints, const Checkpoint& checkpoint,
                              int64_t keep, const Group& group) {
  if (group.is_first()) {
    save_as_first(checkpoints, checkpoint, keep, group);
  } else {
    save_as_other(checkpoint.optimizer, group);
  }
}

}  // namespace flashstep
