#include "flashstep/train/optimizer_tensors.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <typeinfo>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Type.h>

#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"
#include "flashstep/parallel/optimizer_state.h"
#include "flashstep/train/optimizer_parameters.h"

namespace flashstep {
namespace {

using torch::Tensor;

constexpr const char* kArchive = "torch_archive";

// AgreedError, before anything of the optimizer is changed, where torch::optim::serialize would say
// so in the middle: all ranks read the same.
void require_same_groups(torch::serialize::InputArchive& archive,
                         const torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive groups, group;
  Tensor size;
  if (!archive.try_read("param_groups", groups) || !groups.try_read("param_groups/size", size))
    return;  // of an optimizer that writes itself in another way
  std::vector<int64_t> saved, own;
  for (int64_t g = 0; g < size.item<int64_t>(); ++g) {
    groups.read(str("param_groups/", g), group);
    Tensor parameters;
    group.read("params/size", parameters);
    saved.push_back(parameters.item<int64_t>());
  }
  for (const auto& each : optimizer.param_groups())
    own.push_back(static_cast<int64_t>(each.params().size()));
  if (saved != own) {
    throw AgreedError(flashstep::str(
        "[resume] expected an optimizer with the parameter groups that were saved, of ",
        at::IntArrayRef(saved), " parameters, got groups of ", at::IntArrayRef(own)));
  }
}

}  // namespace

OptimizerTensors::OptimizerTensors(const Job& job, NamedTensors parameters)
    : job_(job),
      adamw_(dynamic_cast<AdamW*>(&job.optimizer)),
      sharded_(dynamic_cast<ShardedOptimizerBase*>(&job.optimizer)),
      units_(job.parallel->units()),
      parameters_(std::move(parameters)) {
  if (sharded_ != nullptr) adamw_ = dynamic_cast<AdamW*>(&sharded_->inner());
  require(units_ == nullptr || (adamw_ != nullptr && sharded_ == nullptr),
          "[checkpoint] expected flashstep's AdamW, not sharded by itself, for parameters that "
          "are fully sharded, got another optimizer");
}

std::string OptimizerTensors::class_name() const {
  if (adamw_ != nullptr) return c10::demangle(typeid(AdamW).name());  // reads a subclass's, too
  const torch::optim::Optimizer& inside = sharded_ != nullptr ? sharded_->inner() : job_.optimizer;
  return c10::demangle(typeid(inside).name());
}

void OptimizerTensors::check_parameters() const {
  std::set<void*> others;
  for (const Tensor& parameter : parameters_of(job_.optimizer))
    others.insert(parameter.unsafeGetTensorImpl());
  for (const Tensor& parameter : job_.module.parameters())
    others.erase(parameter.unsafeGetTensorImpl());
  if (others.empty()) return;
  throw AgreedError(flashstep::str(
      "[checkpoint] expected an optimizer of the module's parameters, got one with ", others.size(),
      others.size() == 1 ? " that is" : " that are",
      " not the module's and would be lost: ", "register_parameter() makes it keep them"));
}

std::vector<NamedPiece> OptimizerTensors::own_pieces(bool first_only) const {
  std::vector<NamedPiece> pieces;
  if (units_ != nullptr) {
    for (const Shard& shard : units_->shards()) {
      if ((first_only && !shard.is_first) || (shard.is_divided && shard.begin == shard.end))
        continue;
      pieces.push_back(
          {shard.name, shard.whole, shard.is_divided ? shard.begin : -1, shard.end, shard.tensor});
    }
    return pieces;
  }
  if (sharded_ != nullptr) return sharded_->own_pieces(parameters_);
  for (const auto& [name, parameter] : parameters_)
    pieces.push_back({name, parameter, -1, -1, parameter});
  return pieces;
}

void OptimizerTensors::write_archive(
    const std::function<size_t(const void* data, size_t size)>& write) const {
  torch::serialize::OutputArchive archive;
  try {
    job_.optimizer.save(archive);
    archive.save_to(write);
  } catch (const c10::Error& error) {  // LBFGS has a history of undefined tensors
    throw UserError(str("[checkpoint] expected an optimizer that LibTorch can save, got ",
                        class_name(), ": ", error.what_without_backtrace()));
  }
}

void OptimizerTensors::check_state_is_saved() const {
  const bool may_lack_it = adamw_ == nullptr && sharded_ == nullptr &&
                           !job_.optimizer.state().empty() &&
                           !class_name().starts_with("torch::optim::");
  if (!may_lack_it) return;
  constexpr size_t kMoreThanNothing = size_t{64} << 10;
  std::string bytes;
  try {
    write_archive([&](const void* data, size_t size) {
      const size_t kept = std::min(size, kMoreThanNothing - bytes.size());
      bytes.append(static_cast<const char*>(data), kept);
      return size;
    });
  } catch (const UserError& error) {
    throw AgreedError(error);
  }
  if (bytes.size() == kMoreThanNothing) return;
  torch::serialize::InputArchive written;
  written.load_from(bytes.data(), bytes.size());
  if (!written.keys().empty()) return;
  throw AgreedError(
      str("[checkpoint] expected an optimizer whose save() writes its state and whose load() reads "
          "it, got ",
          class_name(), ", whose save() writes nothing"));
}

NamedTensors OptimizerTensors::read() const {
  check_parameters();
  check_state_is_saved();
  if (adamw_ != nullptr) {
    NamedTensors result;
    for (const NamedPiece& piece : own_pieces(/*first_only=*/true)) {
      for (auto& [name, tensor] : optimizer_state(*adamw_, {{name_of(piece), piece.own}})) {
        const bool is_piece = piece.begin >= 0 && tensor.dim() > 0;
        result.emplace_back(name, is_piece ? tensor.view({-1}) : tensor);
      }
    }
    return result;
  }
  if (sharded_ != nullptr) sharded_->consolidate(0);
  std::string bytes;
  on_first_rank(job_.parallel->group(), "[rank 0] ", [&] {
    write_archive([&](const void* data, size_t size) {
      bytes.append(static_cast<const char*>(data), size);
      return size;
    });
  });
  if (!job_.parallel->is_main_rank()) return {};
  const auto* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return {{kArchive, at::tensor(at::ArrayRef<uint8_t>(begin, bytes.size()), at::kByte)}};
}

void OptimizerTensors::open(const StoredTensors& written) {
  const bool is_archive = written.size() == 1 && written.front().name == kArchive;
  if (adamw_ != nullptr && !(is_archive && sharded_ != nullptr)) return;
  require(is_archive,
          "[resume] expected the checkpoint of another optimizer than AdamW, got one of AdamW");
  const Tensor bytes = written.front().whole();
  const auto parameters = job_.module.parameters();
  // Not where they were saved. A sharded optimizer brings its share to its device by itself.
  const torch::Device device = parameters.empty() || sharded_ != nullptr
                                   ? torch::Device(torch::kCPU)
                                   : parameters.front().device();
  archive_.emplace().load_from(static_cast<const char*>(bytes.data_ptr()), bytes.numel(), device);
  require_same_groups(*archive_, job_.optimizer);
}

void OptimizerTensors::load(StoredTensors written) {
  if (archive_ && sharded_ != nullptr) return sharded_->load(*archive_);
  if (archive_) {
    job_.optimizer.state().clear();  // LibTorch leaves what the archive does not have
    return load_repeated(job_.optimizer, [&] { job_.optimizer.load(*archive_); });
  }
  if (sharded_ != nullptr) sharded_->reconcile();  // with parameters that came later
  adamw_->state().clear();
  cut_each(std::move(written), parameters_, own_pieces(/*first_only=*/false),
           [&](const NamedPiece& piece, NamedTensors state) {
             for (auto& [name, tensor] : state) {
               const bool is_piece = piece.begin >= 0 && tensor.numel() == piece.own.numel();
               if (is_piece && tensor.dim() > 0) tensor = tensor.view(piece.own.sizes());
             }
             add_optimizer_state(*adamw_, {{name_of(piece), piece.own}}, state);
           });
}

}  // namespace flashstep
