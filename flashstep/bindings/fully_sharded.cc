// Units of a Python module's parameters that are whole while they are used (sharded_units.h). Which
// module is which unit, and when it is called, Python knows.
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "flashstep/bindings/border.h"
#include "flashstep/bindings/group.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/bindings/traced.h"
#include "flashstep/detail/module_synchronizer.h"
#include "flashstep/error.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/sharded_units.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;

class UnitsObject : public torch::CustomClassHolder {
 public:
  UnitsObject(c10::intrusive_ptr<GroupObject> group, const std::vector<UnitOfTensors>& units,
              const FullyShardOptions& options, const std::vector<Tensor>& buffers)
      : group_(std::move(group)) {
    broadcast_buffers(buffers, group_->group());
    units_ = shard_units(units, group_->group(), options);
  }

  void begin_forward(int64_t unit) { units_->begin_forward(static_cast<size_t>(unit)); }
  void watch_inputs(int64_t unit, std::vector<Tensor> inputs) {
    for (const Tensor& input : inputs) units_->watch_input(static_cast<size_t>(unit), input);
  }
  void watch(int64_t unit, std::vector<Tensor> outputs) {
    for (const Tensor& output : outputs) units_->watch(static_cast<size_t>(unit), output);
  }
  void end_forward(int64_t unit) { units_->end_forward(static_cast<size_t>(unit)); }
  void abandon() { units_->abandon(); }
  bool is_unfinished() { return units_->is_unfinished(); }

  Tensor clip_grad_norm(double max_norm) { return units_->clip_grad_norm(max_norm); }
  std::tuple<std::vector<std::string>, std::vector<Tensor>> gather(int64_t to) {
    std::tuple<std::vector<std::string>, std::vector<Tensor>> result;
    const auto one = to < 0 ? std::nullopt : std::make_optional(static_cast<int>(to));
    for (auto& [name, tensor] : units_->gather(one)) {
      std::get<0>(result).push_back(name);
      std::get<1>(result).push_back(tensor);
    }
    return result;
  }
  void load(std::vector<std::string> names, std::vector<Tensor> tensors) {
    NamedTensors whole;
    for (size_t i = 0; i < names.size(); ++i) whole.emplace_back(names[i], tensors.at(i));
    units_->load(whole);
  }
  // For optimizers, which know parameters alone.
  static Tensor norm_of_gradients(std::vector<Tensor> parameters) {
    return flashstep::norm_of_gradients(parameters);
  }
  static Tensor on_any_rank(Tensor found, std::vector<Tensor> parameters) {
    return flashstep::on_any_rank(found, parameters);
  }
  static bool divide(std::vector<Tensor> parameters) {
    return !divided_tensors(parameters).empty();
  }
  int64_t gathered_bytes() { return units_->gathered_bytes(); }
  std::string transport() { return units_->transport(); }
  // Calls what Python has registered under `number`, in a thread of autograd's.
  void update_in_backward(int64_t number) {
    static const auto op = operator_named<void(int64_t)>("flashstep::call_update");
    units_->update_in_backward([number](const Tensor& /*not_finite*/) { op.call(number); });
  }

 private:
  const c10::intrusive_ptr<GroupObject> group_;
  std::shared_ptr<ShardedUnits> units_;
};

// Tensor i is of unit `units_of_tensors[i]`, named names[i], and divided or not.
c10::intrusive_ptr<UnitsObject> make_units(
    c10::intrusive_ptr<GroupObject> group, std::vector<std::string> unit_names,
    std::vector<std::string> names, std::vector<Tensor> tensors,
    std::vector<int64_t> units_of_tensors, std::vector<int64_t> divided,
    std::vector<Tensor> buffers, std::optional<at::ScalarType> compute_dtype,
    bool reshard_after_forward, int64_t shard_ranks, bool peer_copies) {
  std::vector<UnitOfTensors> units;
  for (const std::string& name : unit_names) units.push_back({name, {}, {}});
  std::set<std::string> of_divided;
  for (size_t i = 0; i < names.size(); ++i) {
    UnitOfTensors& unit = units.at(static_cast<size_t>(units_of_tensors.at(i)));
    unit.names.push_back(names[i]);
    unit.tensors.push_back(tensors.at(i));
    if (divided.at(i) != 0) of_divided.insert(names[i]);
  }
  FullyShardOptions options;
  options.compute_dtype = compute_dtype;
  options.reshard_after_forward = reshard_after_forward;
  options.shard_ranks = static_cast<int>(shard_ranks);
  options.peer_copies = peer_copies;
  options.shard = [of_divided](const std::string& name, const Tensor&) {
    return of_divided.contains(name);
  };
  return c10::make_intrusive<UnitsObject>(std::move(group), units, options, buffers);
}

}  // namespace

void register_fully_sharded(torch::Library& library) {
  library.class_<UnitsObject>("ShardedUnits")
      .def(torch::init(for_ranks(&make_units)))
      .def("begin_forward", for_ranks(&UnitsObject::begin_forward))
      .def("watch_inputs", for_ranks(&UnitsObject::watch_inputs))
      .def("watch", for_ranks(&UnitsObject::watch))
      .def("end_forward", for_ranks(&UnitsObject::end_forward))
      .def("abandon", for_ranks(&UnitsObject::abandon))
      .def("is_unfinished", for_ranks(&UnitsObject::is_unfinished))
      .def("clip_grad_norm", for_ranks(&UnitsObject::clip_grad_norm))
      .def_static("norm_of_gradients", for_ranks(&UnitsObject::norm_of_gradients))
      .def_static("on_any_rank", for_ranks(&UnitsObject::on_any_rank))
      .def_static("divide", &UnitsObject::divide)
      .def("gather", for_ranks(&UnitsObject::gather))
      .def("load", for_ranks(&UnitsObject::load))
      .def("update_in_backward", for_ranks(&UnitsObject::update_in_backward))
      .def("transport", for_ranks(&UnitsObject::transport))
      .def("gathered_bytes", for_ranks(&UnitsObject::gathered_bytes));
}

}  // namespace flashstep::bindings
