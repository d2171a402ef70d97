// The CUDA kernels over lists of tensors, AdamW, Muon and the norm, behind tensors.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/ops/cuda/adamw.h"
#include "flashstep/ops/cuda/grad_norm.h"
#include "flashstep/ops/cuda/muon.h"
#include "flashstep/ops/multi_tensor_kernels.h"

namespace flashstep::internal {
namespace {

using at::Tensor;
using multi_tensor::Element;

constexpr int kFirstMajor = 8;  // what the library is built for begins with 8.0

bool cuda_takes(const at::Device& device, at::ScalarType dtype) {
  return device.is_cuda() &&
         (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) &&
         at::cuda::getDeviceProperties(device.index())->major >= kFirstMajor;
}

Element element_of_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat      ? Element::kFloat32
         : dtype == at::kBFloat16 ? Element::kBFloat16
                                  : Element::kFloat16;
}

// Memory whose every element is written: at::empty would fill it in deterministic runs.
Tensor unfilled(at::IntArrayRef sizes, const Tensor& like, at::ScalarType dtype) {
  return at::detail::empty_cuda(sizes, like.options().dtype(dtype).requires_grad(false));
}

Tensor cuda_grad_norm(const std::vector<Tensor>& tensors) {
  const c10::cuda::CUDAGuard guard(tensors.front().device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  std::vector<Tensor> dense;
  int64_t numel = 0, blocks = 0;
  for (const Tensor& tensor : tensors) {
    dense.push_back(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
    numel += tensor.numel();
  }
  const int64_t chunk = multi_tensor::norm_chunk(numel);
  for (const Tensor& tensor : dense) blocks += multi_tensor::count_chunks(tensor.numel(), chunk);

  const Tensor sums = unfilled({blocks}, dense.front(), at::kDouble);
  const Tensor norm = unfilled({}, dense.front(), at::kFloat);
  multi_tensor::NormArguments arguments;
  arguments.chunk = chunk;
  arguments.sums = sums.mutable_data_ptr<double>();
  int64_t added = 0;  // blocks of the pieces in `arguments`
  const auto launch = [&] {
    C10_CUDA_CHECK(multi_tensor::launch_square_sums(arguments, stream));
    arguments.sums += added;
    arguments.count = 0;
    added = 0;
  };
  for (const Tensor& tensor : dense) {
    if (tensor.numel() == 0) continue;
    if (arguments.count == multi_tensor::kMostNormPieces) launch();
    arguments.pieces[arguments.count++] = {tensor.const_data_ptr(), tensor.numel(), 0,
                                           element_of_dtype(tensor.scalar_type())};
    added += multi_tensor::count_chunks(tensor.numel(), chunk);
  }
  launch();
  C10_CUDA_CHECK(multi_tensor::launch_norm_of_sums(sums.const_data_ptr<double>(), blocks,
                                                   norm.mutable_data_ptr<float>(), stream));
  return norm;
}

const float* number(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

// To autograd and to copies of parameters the kernel's writes are those of an in-place operation.
void note_written(const Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

void cuda_adamw(const AdamWTensors& tensors, const AdamWSettings& settings) {
  const c10::cuda::CUDAGuard guard(tensors.parameters.front().device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  multi_tensor::AdamWArguments arguments;
  arguments.learning_rate = number(settings.learning_rate);
  arguments.skip = number(settings.skip);
  arguments.norm = number(settings.norm);
  arguments.max_norm = static_cast<float>(settings.max_norm);
  arguments.beta1 = static_cast<float>(settings.beta1);
  arguments.beta2 = static_cast<float>(settings.beta2);
  arguments.weight_decay = static_cast<float>(settings.weight_decay);
  arguments.eps = static_cast<float>(settings.eps);
  arguments.parameter_element = element_of_dtype(tensors.parameters.front().scalar_type());
  arguments.moment_element = element_of_dtype(tensors.exp_avgs.front().scalar_type());
  const auto launch = [&] {
    C10_CUDA_CHECK(multi_tensor::launch_adamw(arguments, stream));
    arguments.count = 0;
  };
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const Tensor copy = tensors.copies.empty() ? Tensor() : tensors.copies[i];
    const Tensor &parameter = tensors.parameters[i], &gradient = tensors.gradients[i];
    if (arguments.count == multi_tensor::kMostAdamWPieces) launch();
    arguments.pieces[arguments.count++] = {
        parameter.mutable_data_ptr(),
        gradient.const_data_ptr(),
        tensors.exp_avgs[i].mutable_data_ptr(),
        tensors.exp_avg_sqs[i].mutable_data_ptr(),
        copy.defined() ? copy.mutable_data_ptr() : nullptr,
        tensors.steps[i].mutable_data_ptr<float>(),
        parameter.numel(),
        0,
        element_of_dtype(gradient.scalar_type()),
        copy.defined() ? element_of_dtype(copy.scalar_type()) : Element::kBFloat16};
    for (const Tensor& tensor :
         {parameter, tensors.exp_avgs[i], tensors.exp_avg_sqs[i], tensors.steps[i]}) {
      note_written(tensor);
    }
    if (copy.defined()) note_written(copy);
  }
  launch();
}

// Calls launch(arguments) for as many pieces at a time as a launch takes.
template <typename Launch>
void for_pieces(const MuonTensors& tensors, const MuonSettings& settings, const Tensor& directions,
                double size, const Launch& launch) {
  const Tensor& first = tensors.parameters.front();
  const c10::cuda::CUDAGuard guard(first.device());
  multi_tensor::MuonArguments arguments;
  arguments.numel = first.numel();
  arguments.parameter_element = element_of_dtype(first.scalar_type());
  arguments.momentum_element = element_of_dtype(tensors.momenta.front().scalar_type());
  arguments.learning_rate = number(settings.learning_rate);
  arguments.skip = number(settings.skip);
  arguments.norm = number(settings.norm);
  arguments.max_norm = static_cast<float>(settings.max_norm);
  arguments.momentum = static_cast<float>(settings.momentum);
  arguments.weight_decay = static_cast<float>(settings.weight_decay);
  arguments.size = static_cast<float>(size);
  arguments.nesterov = settings.nesterov;
  arguments.parameter_by_chance = settings.rounds_by_chance;
  arguments.momentum_by_chance =
      settings.rounds_by_chance || arguments.parameter_element == Element::kFloat32;
  const auto flush = [&](size_t end) {
    arguments.directions =
        directions[static_cast<int64_t>(end) - arguments.count].mutable_data_ptr();
    C10_CUDA_CHECK(launch(arguments, at::cuda::getCurrentCUDAStream().stream()));
    arguments.count = 0;
  };
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    if (arguments.count == multi_tensor::kMostMuonPieces) flush(i);
    const Tensor copy = tensors.copies.empty() ? Tensor() : tensors.copies[i];
    arguments.pieces[arguments.count++] = {
        tensors.parameters[i].mutable_data_ptr(),
        tensors.gradients[i].const_data_ptr(),
        tensors.momenta[i].mutable_data_ptr(),
        copy.defined() ? copy.mutable_data_ptr() : nullptr,
        tensors.steps[i].mutable_data_ptr<float>(),
        element_of_dtype(tensors.gradients[i].scalar_type()),
        copy.defined() ? element_of_dtype(copy.scalar_type()) : Element::kBFloat16};
  }
  flush(tensors.parameters.size());
}

void cuda_muon_directions(const MuonTensors& tensors, const MuonSettings& settings,
                          const Tensor& directions) {
  for_pieces(tensors, settings, directions, 0, multi_tensor::launch_muon_directions);
  for (const Tensor& momentum : tensors.momenta) note_written(momentum);
  for (const Tensor& step : tensors.steps) note_written(step);
}

void cuda_mirror(const Tensor& matrices) {
  const c10::cuda::CUDAGuard guard(matrices.device());
  C10_CUDA_CHECK(multi_tensor::launch_mirror(matrices.mutable_data_ptr(), matrices.size(0),
                                             matrices.size(1),
                                             at::cuda::getCurrentCUDAStream().stream()));
}

void cuda_muon_update(const MuonTensors& tensors, const MuonSettings& settings,
                      const Tensor& directions, double size) {
  for_pieces(tensors, settings, directions, size, multi_tensor::launch_muon_update);
  for (const Tensor& parameter : tensors.parameters) note_written(parameter);
  for (const Tensor& copy : tensors.copies) {
    if (copy.defined()) note_written(copy);
  }
}

}  // namespace

const MultiTensorKernels kCudaMultiTensor = {
    cuda_takes, cuda_grad_norm, cuda_adamw, cuda_muon_directions, cuda_mirror, cuda_muon_update};

}  // namespace flashstep::internal
