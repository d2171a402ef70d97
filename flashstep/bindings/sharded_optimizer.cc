// What an optimizer written in Python needs to be divided between ranks: which pieces this rank
// updates, the way there and back of its parts, and its state as that of whole parameters. The
// optimizer itself stays Python's.
#include "flashstep/sharded_optimizer.h"

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "flashstep/bindings/border.h"
#include "flashstep/bindings/data_parallel.h"
#include "flashstep/bindings/files.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/parallel/named_tensors.h"
#include "flashstep/parallel/shard_plan.h"
#include "flashstep/parallel/state_pieces.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;

using NamesAndTensors = std::tuple<std::vector<std::string>, std::vector<Tensor>>;

NamedTensors named_tensors(std::vector<std::string> names, std::vector<Tensor> tensors) {
  require(names.size() == tensors.size(), "expected a name for each of ", tensors.size(),
          " tensors, got ", names.size());
  NamedTensors result;
  for (size_t i = 0; i < names.size(); ++i) result.emplace_back(names[i], tensors[i]);
  return result;
}

NamesAndTensors taken_apart(const NamedTensors& named) {
  NamesAndTensors result;
  for (const auto& [name, tensor] : named) {
    std::get<0>(result).push_back(name);
    std::get<1>(result).push_back(tensor);
  }
  return result;
}

// Of each piece what the inner optimizer gets, its group and part.
using Pieces = std::tuple<std::vector<Tensor>, std::vector<int64_t>, std::vector<int64_t>>;

class OptimizerShards : public torch::CustomClassHolder {
 public:
  // Parameters and pieces are named by the order in which they came. Ranks compare `lines`, too.
  OptimizerShards(c10::intrusive_ptr<GroupObject> group,
                  std::optional<c10::intrusive_ptr<GradientMeans>> means,
                  std::vector<Tensor> parameters, const std::string& mode, double part_megabytes,
                  bool peer_copies, const std::vector<std::string>& lines)
      : group_(std::move(group)), means_(std::move(means)) {
    ShardOptions options;
    options.mode = mode == "flat" ? ShardMode::kFlat : ShardMode::kWhole;
    options.part_megabytes = part_megabytes;
    options.peer_copies = peer_copies;
    if (means_) options.reducer = &(*means_)->reducer();
    NamedTensors named;
    for (const Tensor& parameter : parameters) named.emplace_back(str(named.size()), parameter);
    plan_ = make_shard_plan(named, group_->group(), options, lines);
  }

  Pieces add(std::vector<Tensor> parameters, std::vector<int64_t> groups) {
    std::vector<GroupedParameter> grouped;
    std::vector<std::pair<std::string, Tensor>> added;
    for (size_t i = 0; i < parameters.size(); ++i) {
      grouped.push_back({parameters[i], static_cast<size_t>(groups.at(i))});
      added.emplace_back(str(parameters_.size() + i), parameters[i]);
    }
    const std::vector<OwnPiece> pieces = plan_->add(grouped);
    parameters_.insert(parameters_.end(), added.begin(), added.end());
    Pieces result;
    auto& [inner, of_groups, parts] = result;
    for (const OwnPiece& piece : pieces) {
      inner.push_back(piece.inner);
      of_groups.push_back(static_cast<int64_t>(piece.group));
      parts.push_back(static_cast<int64_t>(piece.part));
    }
    own_.insert(own_.end(), pieces.begin(), pieces.end());
    return result;
  }

  void begin() { plan_->begin_update(own_); }
  int64_t parts() { return static_cast<int64_t>(plan_->parts()); }
  void send(int64_t part) { plan_->send(static_cast<size_t>(part)); }
  void finish() {
    plan_->finish();
    for (const OwnPiece& piece : own_) {
      if (!piece.inner.is_same(piece.parameter)) piece.inner.mutable_grad().reset();
    }
  }

  void drop_gradients() { plan_->drop_gradients(); }

  // Clips the gradients that the next update uses, wherever they lie; the norm before.
  Tensor clip_grad_norm(double max_norm) {
    const std::vector<Tensor> gradients = plan_->gradients(own_);
    const at::Device device =
        parameters_.empty() ? at::Device(at::kCPU) : parameters_.front().second.device();
    const Tensor own = grad_norm(gradients).to(device);
    const Tensor norm = plan_->divided() ? norm_over_ranks(own, group_->group()) : own;
    clip_to_norm(gradients, norm, max_norm);
    return norm;
  }

  std::vector<int64_t> elements_by_rank() { return plan_->elements_by_rank(); }

  // "PIECE/KIND" of all ranks as "PARAMETER/KIND" on rank `to`; nothing on the others.
  NamesAndTensors gather_state(std::vector<std::string> names, std::vector<Tensor> tensors,
                               int64_t to) {
    NamedTensors own;
    for (auto& [name, tensor] : named_tensors(std::move(names), std::move(tensors))) {
      const size_t slash = name.find('/');
      const OwnPiece& piece = own_.at(std::stoul(name.substr(0, slash)));
      own.emplace_back(name_of(piece) + name.substr(slash), tensor);
    }
    NamedTensors all = gather_tensors(own, group_->group(), static_cast<int>(to));
    if (group_->rank() != to) return {};
    return taken_apart(join_pieces(std::move(all), parameters_));
  }

  // Of "PARAMETER/KIND" this rank's "PIECE/KIND". A tensor with a place is that one of `files`, of
  // which this rank's elements are read.
  NamesAndTensors own_state(std::vector<std::string> names, std::vector<Tensor> tensors,
                            std::vector<int64_t> places_in_files,
                            std::optional<c10::intrusive_ptr<CheckpointFiles>> files) {
    StoredTensors state = in_memory(named_tensors(std::move(names), std::move(tensors)));
    for (size_t i = 0; i < state.size(); ++i) {
      const int64_t place = places_in_files.at(i);
      if (place < 0) continue;
      std::string name = std::move(state[i].name);
      state[i] = (*files)->tensors(false).at(place);
      state[i].name = std::move(name);
    }
    std::vector<NamedPiece> pieces;
    std::map<std::string, size_t> numbers;
    for (size_t i = 0; i < own_.size(); ++i) {
      const OwnPiece& piece = own_[i];
      const bool is_whole = piece.inner.is_same(piece.parameter);
      pieces.push_back({str(number_of(piece.parameter)), piece.parameter,
                        is_whole ? -1 : piece.begin, piece.end});
      numbers[name_of(piece)] = i;
    }
    NamedTensors own = cut_joined(std::move(state), parameters_, pieces);
    for (auto& [name, tensor] : own) {
      const size_t slash = name.find('/');
      name = str(numbers.at(name.substr(0, slash)), name.substr(slash));
    }
    return taken_apart(own);
  }

 private:
  int64_t number_of(const Tensor& parameter) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].second.is_same(parameter)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  std::string name_of(const OwnPiece& piece) const {
    const std::string number = str(number_of(piece.parameter));
    return piece.inner.is_same(piece.parameter)
               ? number
               : piece_name(number, piece.parameter, piece.begin, piece.end);
  }

  const c10::intrusive_ptr<GroupObject> group_;
  const std::optional<c10::intrusive_ptr<GradientMeans>> means_;
  NamedTensors parameters_;  // by number
  std::vector<OwnPiece> own_;
  std::unique_ptr<ShardPlan> plan_;
};

c10::intrusive_ptr<OptimizerShards> make_optimizer_shards(
    c10::intrusive_ptr<GroupObject> group, std::optional<c10::intrusive_ptr<GradientMeans>> means,
    std::vector<Tensor> parameters, std::string mode, double part_megabytes, bool peer_copies,
    std::vector<std::string> lines) {
  return c10::make_intrusive<OptimizerShards>(std::move(group), std::move(means),
                                              std::move(parameters), mode, part_megabytes,
                                              peer_copies, lines);
}

}  // namespace

void register_sharded_optimizer(torch::Library& library) {
  library.class_<OptimizerShards>("OptimizerShards")
      .def(torch::init(for_ranks(&make_optimizer_shards)))
      .def("add", for_ranks(&OptimizerShards::add))
      .def("begin", for_ranks(&OptimizerShards::begin))
      .def("parts", for_ranks(&OptimizerShards::parts))
      .def("send", for_ranks(&OptimizerShards::send))
      .def("finish", for_ranks(&OptimizerShards::finish))
      .def("drop_gradients", for_ranks(&OptimizerShards::drop_gradients))
      .def("clip_grad_norm", for_ranks(&OptimizerShards::clip_grad_norm))
      .def("elements_by_rank", for_ranks(&OptimizerShards::elements_by_rank))
      .def("gather_state", for_ranks(&OptimizerShards::gather_state))
      .def("own_state", for_ranks(&OptimizerShards::own_state));
}

}  // namespace flashstep::bindings
