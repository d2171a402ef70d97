#include "flashstep/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <system_error>

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "flashstep/comm/agreement.h"
#include "flashstep/detail/environment.h"
#include "flashstep/error.h"
#include "flashstep/measure/memory.h"
#include "flashstep/parallel/named_tensors.h"
#include "flashstep/train/checkpoint_in_writing.h"
#include "flashstep/train/host_copies.h"

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

std::string what_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown";
  }
}

// What a rank tells of the files that it has written, or why it could not.
std::string records_of(const std::vector<CheckpointFile>& files, const std::exception_ptr& failed) {
  OrderedJson records = OrderedJson::array();
  for (const CheckpointFile& file : files) {
    records.push_back({{"name", file.name},
                       {"part", file.part},
                       {"size_bytes", file.size_bytes},
                       {"hash", file.hash}});
  }
  if (failed) records.push_back({{"error", what_of(failed)}});
  return records.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Copies on the host, so that handing them over cannot fail half-way.
NamedTensors on_host(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) {
    copies.emplace_back(name, tensor.detach().cpu().contiguous());
  }
  return copies;
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

CheckpointInWriting::CheckpointInWriting(const fs::path& checkpoints, Checkpoint checkpoint,
                                         int64_t keep, const Group* group, bool in_background)
    : checkpoints_(checkpoints),
      checkpoint_(std::move(checkpoint)),
      keep_(keep),
      group_(group),
      unfinished_(checkpoints_, checkpoint_.step),
      state_{checkpoint_.step, {}, checkpoint_.state_json} {
  begin();
  if (!in_background || !start_writing()) write();
}

CheckpointInWriting::~CheckpointInWriting() {
  try {
    if (group_ == nullptr && !is_finished_) finish();
  } catch (const std::exception&) {  // what ends the run is told, and earlier checkpoints are there
  }
  if (writer_.joinable()) writer_.join();
}

void CheckpointInWriting::on_first(const std::function<void()>& work) const {
  on_first_rank(group_,
                "[checkpoint] rank 0 could not save: ", [&] { saving(checkpoint_.step, work); });
}

// What each rank will write.
void CheckpointInWriting::begin() {
  std::string word, place;
  on_first([&] {
    require(checkpoint_.step >= 0 && keep_ >= 0,
            "[checkpoint] expected step and keep of at least 0, got ", checkpoint_.step, " and ",
            keep_);
    unfinished_.begin();
    directory_ = unfinished_.path();
    if (group_ == nullptr) return;
    word = random_word();
    place = fs::absolute(directory_).string();
    write_file(directory_ / kWordName, word);
  });
  const bool is_first = group_ == nullptr || group_->is_first();
  if (is_first && !checkpoint_.model_is_divided)
    files_.push_back({"model.safetensors", "model", std::move(checkpoint_.model)});
  if (group_ == nullptr) {
    files_.push_back({"optimizer.safetensors", "optimizer", std::move(checkpoint_.optimizer)});
    return;
  }
  const auto exchange = [&] {
    word = group_->broadcast(word);
    directory_ = group_->broadcast(place);
    const bool sees_it = holds_word(directory_, word);
    if (checkpoint_.model_is_divided) divide("model", std::move(checkpoint_.model), sees_it);
    divide("optimizer", std::move(checkpoint_.optimizer), sees_it);
  };
  is_first ? saving(checkpoint_.step, exchange) : exchange();
}

// Every rank writes its share of `part` into rank 0's directory, unless it does not see that
// (another machine's disk): then it hands its tensors to rank 0.
void CheckpointInWriting::divide(const char* part, NamedTensors own, bool sees_it) {
  NamedTensors handed_over;
  if (sees_it && !own.empty()) {
    files_.push_back({share_name(part, *group_), part, std::move(own)});
  } else {
    try {
      handed_over = on_host(own);
    } catch (...) {
      failed_ = std::current_exception();
    }
  }
  const NamedTensors of_others = gather_tensors(handed_over, *group_, /*to=*/0);
  // Now: the memory is wanted for the next part's.
  if (!of_others.empty()) write_one({str(part, ".others.safetensors"), part, of_others});
}

// What of the host's memory the ranks of this machine want for copies.
double CheckpointInWriting::copied_bytes() const {
  const int ranks = group_ == nullptr
                        ? 1
                        : std::clamp(read_environment().local_world_size, 1, group_->world_size());
  double bytes = 0;
  for (const File& file : files_) {
    const bool is_one_of_many = group_ != nullptr && file.name != "model.safetensors";
    for (const auto& [name, tensor] : file.tensors)
      bytes += static_cast<double>(tensor.nbytes()) * (is_one_of_many ? ranks : 1);
  }
  return bytes;
}

// False, and whatever tensors there are then can be written, where there is no room for copies with
// as much left, or what else it takes.
bool CheckpointInWriting::start_writing() {
  try {
    if (2 * copied_bytes() > static_cast<double>(measure::available_bytes())) return false;
    for (File& file : files_) {
      std::vector<at::Tensor> tensors;
      for (const auto& [name, tensor] : file.tensors) tensors.push_back(tensor);
      const std::vector<at::Tensor> copies = copies_on_host(tensors);
      for (size_t i = 0; i < copies.size(); ++i) file.tensors[i].second = copies[i];
    }
    writer_ = std::thread([this] { write(); });
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

void CheckpointInWriting::write_one(const File& file) {
  try {
    written_.push_back(write_part(directory_, file.name, file.part.c_str(), file.tensors));
  } catch (...) {
    if (!failed_) failed_ = std::current_exception();
  }
}

void CheckpointInWriting::write() {
  for (const File& file : files_) write_one(file);
  files_.clear();
  is_written_ = true;
}

fs::path CheckpointInWriting::finish(std::vector<fs::path>* surplus) {
  if (writer_.joinable()) writer_.join();
  is_finished_ = true;
  std::sort(written_.begin(), written_.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.name < b.name; });
  std::vector<std::string> records = {records_of(written_, failed_)};
  if (group_ != nullptr) {
    const auto exchange = [&] { records = group_->all_gather(records.front()); };
    group_->is_first() ? saving(checkpoint_.step, exchange) : exchange();
  }
  on_first([&] {
    if (failed_) std::rethrow_exception(failed_);
    add_shares(directory_, records, state_.files);
    if (group_ != nullptr) fs::remove(directory_ / kWordName);
    write_file(directory_ / kStateName, format_checkpoint_state(state_));
    const std::vector<fs::path> aside = unfinished_.finish(keep_);
    surplus != nullptr ? void(*surplus = aside) : remove_trees(aside);
  });
  return checkpoint_directory(checkpoints_, checkpoint_.step);
}

fs::path save_checkpoint(const fs::path& checkpoints, const Checkpoint& checkpoint, int64_t keep,
                         const Group* group) {
  return CheckpointInWriting(checkpoints, checkpoint, keep, group, /*in_background=*/false)
      .finish();
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
    const fs::path path = unfinished.path();
    state.files.push_back(write_part(path, "model.safetensors", "model", checkpoint.model));
    state.files.push_back(
        write_part(path, "optimizer.safetensors", "optimizer", checkpoint.optimizer));
    write_file(path / kStateName, format_checkpoint_state(state));
    unfinished.finish();
  });
}

}  // namespace flashstep
