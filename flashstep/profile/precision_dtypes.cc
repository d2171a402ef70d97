#include <cmath>
#include <set>

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "flashstep/amp.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/ops.h"
#include "flashstep/profile/account_table.h"
#include "flashstep/profile/precision.h"

namespace flashstep::tools {
namespace {

constexpr int kAdditions = 1000;
constexpr double kAddend = 0.01;

std::string name_of(at::ScalarType dtype) { return c10::getDtypeNames(dtype).first; }

struct Loop {
  const char* name;
  at::ScalarType sum, addend;
  bool cast;  // the addend is cast to the sum's dtype before it is added
};

constexpr Loop kLoops[] = {
    {"float32 + float32", at::kFloat, at::kFloat, false},
    {"float16 + float16", at::kHalf, at::kHalf, false},
    {"float32 + float16", at::kFloat, at::kHalf, false},
    {"float32 + float16 cast to float32", at::kFloat, at::kHalf, true},
    {"bfloat16 + bfloat16", at::kBFloat16, at::kBFloat16, false},
    {"float32 + bfloat16", at::kFloat, at::kBFloat16, false},
};

at::Tensor scalar(double value, at::ScalarType dtype) { return at::full({}, value, dtype); }

double run(const Loop& loop) {
  at::Tensor sum = scalar(0, loop.sum);
  for (int i = 0; i < kAdditions; ++i) {
    const at::Tensor addend = scalar(kAddend, loop.addend);
    sum += loop.cast ? addend.to(loop.sum) : addend;
  }
  return sum.item<double>();
}

// Half of the distance between neighbouring numbers of `dtype` at `value`: what one addition can
// round away there.
double half_spacing(double value, at::ScalarType dtype) {
  const int bits = dtype == at::kHalf ? 11 : dtype == at::kBFloat16 ? 8 : 24;  // of the significand
  return std::ldexp(1.0, std::ilogb(value) - bits);
}

using at::Tensor;

constexpr int64_t kRows = 8, kInputs = 20, kHidden = 10, kClasses = 5;

// The handout's model; x (B, kInputs) -> (B, kClasses).
struct ToyModelImpl : torch::nn::Module {
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  torch::nn::LayerNorm ln{nullptr};

  ToyModelImpl() {
    using torch::nn::LinearOptions;
    fc1 = register_module("fc1", torch::nn::Linear(LinearOptions(kInputs, kHidden).bias(false)));
    ln = register_module("ln", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})));
    fc2 = register_module("fc2", torch::nn::Linear(LinearOptions(kHidden, kClasses).bias(false)));
  }
};
TORCH_MODULE(ToyModel);

// In the order of the rows.
constexpr const char* kTensors[] = {
    "parameters",
    "fc1 output",
    "LayerNorm output",
    "logits",
    "loss: cross-entropy",
    "loss: mean of the logits",
    "gradients",
    "flashstep's RMSNorm output",
    "flashstep's cross-entropy",
};

std::string name_of(const std::vector<Tensor>& tensors) {
  std::set<std::string> names;
  for (const Tensor& tensor : tensors) names.insert(name_of(tensor.scalar_type()));
  return join({names.begin(), names.end()});
}

// Cells of one device and dtype; what comes after an operation that the device does not have is
// "fails", with the reason in `failure`.
struct Column {
  at::Device device;
  at::ScalarType dtype;
  std::vector<std::string> cells = {};
  std::string failure = {};

  Column(at::Device on_device, at::ScalarType of_dtype) : device(on_device), dtype(of_dtype) {
    try {
      observe();
    } catch (const c10::Error& error) {
      failure = first_line(error.what_without_backtrace());
    }
    cells.resize(std::size(kTensors), "fails");
  }

  std::string title() const { return str(device.is_cpu() ? "CPU" : "CUDA", ", ", name_of(dtype)); }

  void see(const Tensor& tensor) { cells.push_back(name_of(tensor.scalar_type())); }

  void observe() {
    ToyModel model;
    model->to(device);
    const Tensor x = at::linspace(-1, 1, kRows * kInputs).view({kRows, kInputs}).to(device);
    const Tensor targets = at::arange(kRows, at::kLong).remainder(kClasses).to(device);
    Tensor hidden, logits, loss;
    {
      const AutocastGuard autocast(device.type(), dtype);
      cells.push_back(name_of(model->parameters()));
      hidden = model->fc1->forward(x);
      see(hidden);
      const Tensor normalized = model->ln->forward(at::relu(hidden));
      see(normalized);
      logits = model->fc2->forward(normalized);
      see(logits);
      loss = at::cross_entropy_loss(logits, targets);
      see(loss);
      see(logits.mean());
    }
    loss.backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
    cells.push_back(name_of(gradients));
    const AutocastGuard autocast(device.type(), dtype);
    see(rms_norm(hidden.detach(), at::ones({kHidden}, x.options()), 1e-5));
    see(cross_entropy(logits.detach(), targets));
  }
};

// "LayerNorm output: float32 on CUDA, float16 on the CPU", for what differs between devices.
std::string differences(const Column& cpu, const Column& cuda) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::size(kTensors); ++i) {
    if (cpu.cells[i] == cuda.cells[i]) continue;
    lines.push_back(
        str(kTensors[i], " ", cpu.cells[i], " on the CPU, ", cuda.cells[i], " on CUDA"));
  }
  return str(cuda.title(), ": ", lines.empty() ? "as on the CPU" : join(lines, "; "));
}

}  // namespace

measure::Table precision_accumulation() {
  measure::Table table = empty_table(
      str("Sum of ", kAdditions, " x ", kAddend),
      {measure::text_column("sum + addend"), measure::number_column("result", "", 4),
       measure::number_column("error", "%", 4), measure::number_column("from the addend", "%", 4),
       measure::number_column("from the sum", "%", 4)});
  const double exact = kAdditions * kAddend;
  for (const Loop& loop : kLoops) {
    const double result = run(loop);
    // Exact additions of the rounded addend: what is left is the sum's own rounding.
    const double of_addend = kAdditions * scalar(kAddend, loop.addend).item<double>();
    table.add_row({loop.name, result, 100 * (result - exact) / exact,
                   100 * (of_addend - exact) / exact, 100 * (result - of_addend) / exact});
  }
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    derive(table, kAddend, " in ", name_of(dtype), " is ",
           number(scalar(kAddend, dtype).item<double>(), 8),
           "; a sum near 8 rounds each addition to a multiple of ",
           number(2 * half_spacing(8, dtype), 4), ", so that up to ",
           number(half_spacing(8, dtype), 4), " is lost or gained, at ", kAddend, " an addition");
  }
  derive(
      table,
      "Casting the addend first changes nothing: float32 + float16 is computed in float32 anyway.");
  return table;
}

measure::Table precision_dtypes() {
  std::vector<at::Device> devices = {at::kCPU};
  const bool has_gpu = !measure::list_gpus().empty();
  if (has_gpu) devices.push_back(current_device("cuda"));
  std::vector<Column> columns;
  for (const at::Device device : devices) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16})
      columns.emplace_back(device, dtype);
  }
  measure::Table table = empty_table("Dtypes of the ToyModel's tensors under autocast",
                                     {measure::text_column("tensor")});
  for (const Column& column : columns)
    table.columns.push_back(measure::text_column(column.title()));
  for (size_t i = 0; i < std::size(kTensors); ++i) {
    std::vector<measure::Cell> row = {kTensors[i]};
    for (const Column& column : columns) row.emplace_back(column.cells[i]);
    table.add_row(std::move(row));
  }
  for (const Column& column : columns) {
    if (!column.failure.empty()) derive(table, column.title(), ": ", column.failure);
  }
  if (!has_gpu) {
    derive(table, "No CUDA columns: this ",
           measure::built_with_cuda() ? "machine has no GPU that this process may use."
                                      : "program was built without CUDA.");
  }
  for (size_t i = 2; i < columns.size(); ++i)
    derive(table, differences(columns[i - 2], columns[i]));
  derive(
      table,
      "Autocast lists operations, not tensors: matrix products get 16 bits, what CUDA's list names "
      "(norms, softmax, losses, sums) float32; the CPU's list of the latter is shorter. All others "
      "take what comes. Parameters keep their dtype: their 16-bit copies live as long as the "
      "guard, and gradients come back through the copy.");
  return table;
}

}  // namespace flashstep::tools
