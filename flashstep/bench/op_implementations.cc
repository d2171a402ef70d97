#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>

#include "flashstep/bench/ops.h"
#include "flashstep/measure/limits.h"

namespace flashstep::tools {
namespace {

using at::Tensor;
using Json = nlohmann::json;

constexpr int64_t kBlockElements = 1 << 25;  // that are compared at once: 256 MiB of float64

// The distance from an expected value that comes in parts.
class Distance {
 public:
  void add(const Tensor& found, const Tensor& expected) {
    const double largest = (found.to(at::kDouble) - expected).abs().max().item<double>();
    largest_ = largest > largest_ || std::isnan(largest) ? largest : largest_;
    squares_ += expected.square().sum().item<double>();
    count_ += static_cast<double>(expected.numel());
  }
  double over_root_mean_square() const { return largest_ / std::sqrt(squares_ / count_); }

 private:
  double largest_ = 0, squares_ = 0, count_ = 0;
};

// The value, then the gradients of the tensors that require one.
std::vector<Tensor> values_of(const TensorOp& op, const OpInputs& in) {
  std::vector<Tensor> leaves, values = {op(in.tensors)};
  for (const Tensor& tensor : in.tensors) {
    if (tensor.requires_grad()) leaves.push_back(tensor);
  }
  if (in.grad_out.defined()) {
    for (Tensor& gradient : torch::autograd::grad({values[0]}, leaves, {in.grad_out}))
      values.push_back(std::move(gradient));
  }
  values[0] = values[0].detach();
  return values;
}

// Another tensor of the same kind: a leaf where the first is one.
Tensor alike(const Tensor& like, const Tensor& values) {
  return values.detach().requires_grad_(like.requires_grad());
}
Tensor wide(const Tensor& x) { return x.is_floating_point() ? x.to(at::kDouble) : x; }

class TensorImplementation : public Implementation {
 public:
  TensorImplementation(TensorOp op, TensorOp expected, const OpInputs& inputs)
      : op_(std::move(op)), expected_(std::move(expected)), inputs_(inputs) {}

  void check() override {
    OpInputs own = inputs_;
    if (own.in_place) {
      for (Tensor& tensor : own.tensors) tensor = tensor.clone();
    }
    const std::vector<Tensor> found = values_of(op_, own);
    std::vector<Distance> distances(found.size());
    const int64_t rows = inputs_.row_tensors > 0 ? inputs_.tensors[0].size(0) : 1;
    const int64_t step = std::max<int64_t>(1, kBlockElements * rows / inputs_.tensors[0].numel());
    std::vector<Tensor> sums(found.size());
    for (int64_t row = 0; row < rows; row += step)
      compare_block(found, row, std::min(step, rows - row), distances, sums);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].defined()) distances[i].add(found[i], sums[i]);
    }
    error_ = distances[0].over_root_mean_square();
    for (size_t i = 1; i < distances.size(); ++i) {
      const double one = distances[i].over_root_mean_square();
      if (std::isnan(one) || one > gradient_error_) gradient_error_ = one;
    }
  }

  void note(const std::string& pass, Record& record) const override {
    record.facts["error"] = error_;
    if (pass == kBothPasses) record.facts["gradient error"] = gradient_error_;
  }

  std::vector<double> turn(const std::string& pass, int64_t warmup, int64_t samples,
                           int64_t calls) override {
    const NumberedCall call = [&](int64_t) {
      const at::AutoGradMode graph(pass == kBothPasses);
      if (pass == kBothPasses)
        values_of(op_, inputs_);
      else
        op_(inputs_.tensors);
    };
    for (int64_t i = 0; i < warmup; ++i) call(i);
    return seconds_of_calls(call, inputs_.tensors[0].device(), 0, samples, calls);
  }

 private:
  // Rows of the value and of the row tensors' gradients by themselves; gradients of what all rows
  // share are added up in `sums`.
  void compare_block(const std::vector<Tensor>& found, int64_t row, int64_t count,
                     std::vector<Distance>& distances, std::vector<Tensor>& sums) const {
    const auto part = [&](const Tensor& x) {
      return inputs_.row_tensors > 0 ? x.narrow(0, row, count) : x;
    };
    OpInputs block;
    for (size_t i = 0; i < inputs_.tensors.size(); ++i) {
      const Tensor& x = inputs_.tensors[i];
      const Tensor values = wide(i < inputs_.row_tensors ? part(x) : x);
      block.tensors.push_back(alike(x, inputs_.in_place ? values.clone() : values));
    }
    if (inputs_.grad_out.defined()) block.grad_out = wide(part(inputs_.grad_out));
    const std::vector<Tensor> expected = values_of(expected_, block);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (inputs_.row_tensors > 0 && i <= inputs_.row_tensors)
        distances[i].add(part(found[i]), expected[i]);
      else
        sums[i] = sums[i].defined() ? sums[i] + expected[i] : expected[i];
    }
  }

  TensorOp op_, expected_;
  const OpInputs& inputs_;
  double error_ = 0, gradient_error_ = 0;
};

class PythonImplementation : public Implementation {
 public:
  PythonImplementation(PythonPeer& peer, Json c) : peer_(peer), request_(std::move(c)) {
    request_["threads"] = at::get_num_threads();
  }
  ~PythonImplementation() override {
    try {
      peer_.tell_if_running({{"do", "release"}});
    } catch (const std::exception&) {  // a signal: it goes with its process
    }
  }

  void check() override { errors_ = peer_.ask(request_, {{"do", "errors"}}); }

  void note(const std::string& pass, Record& record) const override {
    record.facts["error"] = number("y");
    if (pass == kBothPasses) record.facts["gradient error"] = number("gradients");
  }

  std::vector<double> turn(const std::string& pass, int64_t warmup, int64_t samples,
                           int64_t calls) override {
    return peer_.turn(request_, pass, warmup, samples, calls);
  }

 private:
  double number(const char* key) const {
    return errors_.at(key).is_null() ? NAN : errors_.at(key).get<double>();
  }

  PythonPeer& peer_;
  Json request_, errors_;
};

}  // namespace

std::unique_ptr<Implementation> tensor_implementation(TensorOp op, TensorOp expected,
                                                      const OpInputs& inputs) {
  return std::make_unique<TensorImplementation>(std::move(op), std::move(expected), inputs);
}

std::unique_ptr<Implementation> python_implementation(PythonPeer& peer, Json c) {
  return std::make_unique<PythonImplementation>(peer, std::move(c));
}

Tensor OpSize::draw(at::IntArrayRef shape, double scale, double shift) const {
  Tensor x = at::randn(shape, at::TensorOptions(scalar_type(dtype)).device(device));
  if (scale != 1) x = x * scale;
  if (shift != 0) x = x + shift;
  return x.detach().requires_grad_();
}

Json OpSize::request(const std::string& op) const {
  Json request = {{"op", op},
                  {"rows", rows},
                  {"width", width},
                  {"dtype", dtype},
                  {"device", device.is_cuda() ? "cuda" : "cpu"}};
  if (vocab > 0) request.update({{"d_ff", d_ff}, {"vocab", vocab}});
  return request;
}

void add_work(std::vector<Record>& records, const Operator& op, const OpSize& size) {
  const std::string device = size.device.is_cuda() ? "cuda" : "cpu";
  for (Record& record : records) {
    const Work work = op.work(size, record.text("pass") == kBothPasses);
    record.facts["bytes"] = work.bytes;
    record.facts["limit seconds"] = work.bytes / measure::memory_limit_bytes_per_s(device);
    if (work.flops > 0)
      record.facts["limit seconds"] =
          std::max(record.number("limit seconds"),
                   work.flops / measure::matmul_limit_flops(device, size.dtype));
  }
}

std::vector<NamedPicture> op_pictures(
    const Records& records,
    const std::function<NamedPicture(const std::string& name, const Records&)>& draw) {
  std::vector<NamedPicture> pictures;
  for (const auto& [name, members] :
       records.grouped([](const Record& r) { return r.text("dtype") + "_" + r.text("pass"); }))
    pictures.push_back(draw(name, members));
  return pictures;
}

Benchmark op_benchmark(const std::string& name, const std::string& device, const Schema& key,
                       const std::string& baseline) {
  const auto if_timed = [](const CellOf& cell) { return if_has("seconds", cell); };
  const auto beside = [baseline](const Record& r, const Records& all) {
    return times_as_fast(r, all, baseline, "seconds");
  };
  const Schema schema =
      key + Schema{text_key("pass"),
                   {measure::text_column("implementation"), implementation()},
                   {significant("median", "ms"), or_word(median("seconds", 1e3))},
                   {significant("p10", "ms"), quantile("seconds", 0.1, 1e3)},
                   {significant("p90", "ms"), quantile("seconds", 0.9, 1e3)},
                   {measure::integer_column("calls"), count("seconds")},
                   {significant("traffic", "MB"), if_timed(fact("bytes", 1e-6))},
                   {significant("rate", "GB/s", 5), finite(rate("bytes", "seconds", 1e-9))},
                   {measure::number_column("of limit", "%", 1),
                    finite(rate("limit seconds", "seconds", 100))},
                   {measure::number_column("x " + baseline, "", 2), finite(beside)},
                   {error_column("error"), if_timed(fact("error"))},
                   {error_column("gradient error"), if_timed(fact("gradient error"))}};
  Benchmark benchmark;
  benchmark.command = "bench " + name;
  benchmark.device = device;
  benchmark.schema = [schema](const Records&) { return schema; };
  benchmark.how_to_read = {note(name)};
  benchmark.findings = [](const Records& records) {
    return speed_beside_others(records, "flashstep", "seconds");
  };
  return benchmark;
}

}  // namespace flashstep::tools
