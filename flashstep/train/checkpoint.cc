#include "flashstep/checkpoint.h"

#include <cstdio>
#include <random>
#include <system_error>

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"
#include "flashstep/parallel/named_tensors.h"
#include "flashstep/train/checkpoint_folder.h"
#include "flashstep/train/checkpoint_state.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

CheckpointFile write_part(const fs::path& directory, const std::string& name, const char* part,
                          const NamedTensors& tensors) {
  const WrittenFile written = write_safetensors(directory / name, tensors, {{"format", "pt"}});
  return {name, part, written.size_bytes, written.hash};
}

// "00002-of-00004", as files of many parts are commonly numbered.
std::string share_name(const std::string& part, const Group& group) {
  char number[32];
  std::snprintf(number, sizeof number, ".%05d-of-%05d", group.rank(), group.world_size());
  return part + number + ".safetensors";
}

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

// What a rank tells of a file that it writes: its record, or why it could not be written.
template <typename Write>
OrderedJson record_of(Write write) {
  try {
    const CheckpointFile file = write();
    return {{"name", file.name},
            {"part", file.part},
            {"size_bytes", file.size_bytes},
            {"hash", file.hash}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
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

// Every rank writes its share of `part` into rank 0's directory, unless it does not see that
// (another machine's disk): then it hands its tensors to rank 0.
void write_share(const fs::path& directory, bool sees_it, const char* part, const NamedTensors& own,
                 const Group& group, OrderedJson& records) {
  NamedTensors handed_over;
  if (sees_it && !own.empty()) {
    records.push_back(
        record_of([&] { return write_part(directory, share_name(part, group), part, own); }));
  } else {
    try {
      handed_over = on_host(own);
    } catch (const std::exception& error) {
      records.push_back({{"error", error.what()}});
    }
  }
  const NamedTensors of_others = gather_tensors(handed_over, group, /*to=*/0);
  if (of_others.empty()) return;
  records.push_back(record_of(
      [&] { return write_part(directory, str(part, ".others.safetensors"), part, of_others); }));
}

// What ranks divide, into rank 0's `directory`, which holds `word`. Returns everybody's records.
std::vector<std::string> write_shares(const fs::path& directory, const std::string& word,
                                      const Checkpoint& checkpoint, const Group& group) {
  OrderedJson records = OrderedJson::array();
  const bool sees_it = holds_word(directory, word);
  if (checkpoint.model_is_divided)
    write_share(directory, sees_it, "model", checkpoint.model, group, records);
  write_share(directory, sees_it, "optimizer", checkpoint.optimizer, group, records);
  return group.all_gather(records.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

// What the ranks wrote, as rank 0 sees it.
void add_shares(const fs::path& directory, const std::vector<std::string>& records_of_ranks,
                std::vector<CheckpointFile>& files) {
  for (size_t rank = 0; rank < records_of_ranks.size(); ++rank) {
    for (const OrderedJson& record : OrderedJson::parse(records_of_ranks[rank])) {
      if (record.contains("error")) {
        throw MachineError(str("[checkpoint] rank ", rank,
                               " cannot write its share: ", record.at("error").get<std::string>()));
      }
      files.push_back(
          {record.at("name"), record.at("part"), record.at("size_bytes"), record.at("hash")});
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
}

// Failures of the machine in `work` are told with the step.
template <typename Work>
void saving(int64_t step, Work work) {
  try {
    work();
  } catch (const std::exception& error) {
    const bool is_machines = dynamic_cast<const MachineError*>(&error) != nullptr ||
                             dynamic_cast<const std::system_error*>(&error) != nullptr;
    if (!is_machines) throw;
    const std::string sentence = str("[checkpoint] cannot save step ", step,
                                     " (earlier checkpoints are untouched): ", error.what());
    if (const auto* lost = dynamic_cast<const LostRank*>(&error))
      throw LostRank(sentence, lost->rank());
    throw MachineError(sentence);
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& checkpoints, const Checkpoint& checkpoint, int64_t keep,
                         const Group* group) {
  UnfinishedCheckpoint unfinished(checkpoints, checkpoint.step);
  const fs::path& directory = unfinished.path();
  CheckpointState state{checkpoint.step, {}, checkpoint.state_json};
  std::string word, place;
  const auto on_first = [&](const std::function<void()>& work) {
    on_first_rank(group,
                  "[checkpoint] rank 0 could not save: ", [&] { saving(checkpoint.step, work); });
  };
  on_first([&] {
    require(checkpoint.step >= 0 && keep >= 0,
            "[checkpoint] expected step and keep of at least 0, got ", checkpoint.step, " and ",
            keep);
    unfinished.begin();
    if (!checkpoint.model_is_divided)
      state.files.push_back(write_part(directory, "model.safetensors", "model", checkpoint.model));
    if (group == nullptr) {
      state.files.push_back(
          write_part(directory, "optimizer.safetensors", "optimizer", checkpoint.optimizer));
      return;
    }
    word = random_word();
    place = fs::absolute(directory).string();
    write_file(directory / kWordName, word);
  });
  std::vector<std::string> records;
  if (group != nullptr) {
    const auto exchange = [&] {
      word = group->broadcast(word);
      place = group->broadcast(place);
      records = write_shares(place, word, checkpoint, *group);
    };
    group->is_first() ? saving(checkpoint.step, exchange) : exchange();
  }
  on_first([&] {
    if (group != nullptr) {
      add_shares(place, records, state.files);
      fs::remove(directory / kWordName);
    }
    write_file(directory / kStateName, format_checkpoint_state(state));
    unfinished.finish(keep);
  });
  return checkpoint_directory(checkpoints, checkpoint.step);
}

void write_checkpoint(const fs::path& directory, const Checkpoint& checkpoint) {
  require(checkpoint.step >= 0, "[checkpoint] expected a step of at least 0, got ",
          checkpoint.step);
  const int64_t named = step_of(directory);
  require(named < 0 || named == checkpoint.step, "[checkpoint] expected step ", named, " for ",
          directory.string(), ", got ", checkpoint.step);
  UnfinishedCheckpoint unfinished(directory);
  saving(checkpoint.step, [&] {
    unfinished.begin();
    CheckpointState state{checkpoint.step, {}, checkpoint.state_json};
    const fs::path& path = unfinished.path();
    state.files.push_back(write_part(path, "model.safetensors", "model", checkpoint.model));
    state.files.push_back(
        write_part(path, "optimizer.safetensors", "optimizer", checkpoint.optimizer));
    write_file(path / kStateName, format_checkpoint_state(state));
    unfinished.finish();
  });
}

}  // namespace flashstep
