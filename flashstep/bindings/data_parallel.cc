#include "flashstep/bindings/data_parallel.h"

#include <utility>

#include "flashstep/bindings/border.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/error.h"

namespace flashstep::bindings {
namespace {

c10::intrusive_ptr<GradientMeans> make_gradient_means(
    c10::intrusive_ptr<GroupObject> group, std::vector<std::string> names,
    std::vector<at::Tensor> parameters, std::vector<at::Tensor> buffers, std::string strategy,
    double bucket_megabytes, bool reorder, bool allow_unused, std::optional<bool> flat_buckets,
    std::optional<at::ScalarType> communication_dtype, bool debug, bool peer_copies,
    bool gradient_as_bucket_view) {
  require(names.size() == parameters.size(), "[DistributedDataParallel] expected a name for each ",
          "of ", parameters.size(), " parameters, got ", names.size());
  NamedTensors named;
  for (size_t i = 0; i < names.size(); ++i)
    named.emplace_back(std::move(names[i]), std::move(parameters[i]));
  ReducerOptions options;
  options.strategy = strategy_by_name(strategy);
  options.bucket_megabytes = bucket_megabytes;
  options.reorder = reorder;
  options.allow_unused = allow_unused;
  options.flat_buckets = flat_buckets;
  options.communication_dtype = communication_dtype;
  options.debug = debug;
  options.peer_copies = peer_copies;
  options.gradient_as_bucket_view = gradient_as_bucket_view;
  return c10::make_intrusive<GradientMeans>(std::move(group), std::move(named), std::move(buffers),
                                            options);
}

}  // namespace

GradientMeans::GradientMeans(c10::intrusive_ptr<GroupObject> group, NamedTensors parameters,
                             std::vector<at::Tensor> buffers, const ReducerOptions& options)
    : group_(std::move(group)), parameters_(std::move(parameters)), buffers_(std::move(buffers)) {
  const SynchronizedModule module{[this] { return parameters_; }, [this] { return buffers_; }};
  synchronizer_ = std::make_unique<ModuleSynchronizer>(module, group_->group(), options);
}

void GradientMeans::watch(std::vector<at::Tensor> outputs) {
  for (const at::Tensor& output : outputs) synchronizer_->watch(output);
}

void register_data_parallel(torch::Library& library) {
  library.class_<GradientMeans>("GradientMeans")
      .def(torch::init(for_ranks(&make_gradient_means)))
      .def("before_forward", for_ranks(&GradientMeans::before_forward))
      .def("watch", for_ranks(&GradientMeans::watch))
      .def("finish", for_ranks(&GradientMeans::finish))
      .def("forget_step", for_ranks(&GradientMeans::forget_step))
      .def("enter_no_sync", for_ranks(&GradientMeans::enter_no_sync))
      .def("leave_no_sync", for_ranks(&GradientMeans::leave_no_sync))
      .def("broadcast_buffers", for_ranks(&GradientMeans::broadcast_buffers))
      .def("describe", for_ranks(&GradientMeans::describe))
      .def("bucket_order", for_ranks(&GradientMeans::bucket_order))
      .def("set_bucket_order", for_ranks(&GradientMeans::set_bucket_order))
      .def("bucket_megabytes", for_ranks(&GradientMeans::bucket_megabytes));
}

}  // namespace flashstep::bindings
