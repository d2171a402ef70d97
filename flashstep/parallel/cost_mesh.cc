// Feed-forward layers on a mesh: the part of cost.h on compute against communication.
#include <cmath>
#include <limits>

#include "flashstep/parallel/cost.h"

namespace flashstep {
namespace {

double multiplied_flops(const FeedForward& layer, double tokens) {  // of one pass forward
  return 2.0 * layer.matrices * tokens * layer.d_model * layer.d_ff;
}

// e C / W: what is computed while one element is sent.
double flops_per_element(const FeedForward& layer, const Accelerator& accelerator) {
  return layer.element_bytes * accelerator.flops_per_s / accelerator.bytes_per_s;
}

double tensor_seconds(const FeedForward& layer, double tokens, const Mesh& mesh,
                      const Accelerator& accelerator) {
  const double activations = layer.element_bytes * tokens / mesh.data * layer.d_model;
  return all_reduce_bytes(activations, mesh.tensor) / (accelerator.bytes_per_s * mesh.tensor_links);
}

// Of the weights that the ranks of one X group have in common.
double weight_bytes(const FeedForward& layer, const Mesh& mesh) {
  return layer.element_bytes * layer.matrices * layer.d_model * layer.d_ff / mesh.tensor;
}

}  // namespace

PassTimes forward_times(const FeedForward& layer, double tokens, const Mesh& mesh,
                        const Accelerator& accelerator) {
  PassTimes times;
  times.flops = multiplied_flops(layer, tokens) / mesh.data / mesh.tensor;
  times.compute_s = times.flops / accelerator.flops_per_s;
  if (mesh.sharded) {
    times.data_s = all_gather_bytes(weight_bytes(layer, mesh), mesh.data) /
                   (accelerator.bytes_per_s * mesh.data_links);
  }
  times.tensor_s = tensor_seconds(layer, tokens, mesh, accelerator);
  return times;
}

PassTimes backward_times(const FeedForward& layer, double tokens, const Mesh& mesh,
                         const Accelerator& accelerator) {
  PassTimes times;
  times.flops = 2 * multiplied_flops(layer, tokens) / mesh.data / mesh.tensor;
  times.compute_s = times.flops / accelerator.flops_per_s;
  // Whole weights: their gradients all-reduced. Divided: weights gathered, gradients
  // reduce-scattered. The bytes are the same.
  times.data_s = all_reduce_bytes(weight_bytes(layer, mesh), mesh.data) /
                 (accelerator.bytes_per_s * mesh.data_links);
  times.tensor_s = tensor_seconds(layer, tokens, mesh, accelerator);
  return times;
}

double feed_forward_parameters(const FeedForward& layer, int64_t blocks) {
  return static_cast<double>(blocks) * layer.matrices * layer.d_model * layer.d_ff;
}

double feed_forward_saved_bytes(const FeedForward& layer, int64_t blocks, double tokens) {
  const double inner =
      layer.matrices == 2 ? 1 : layer.matrices;  // w2's input; beside it w1 x, w3 x
  return layer.element_bytes * static_cast<double>(blocks) * tokens *
         (layer.d_model + inner * layer.d_ff);
}

double divided_bytes(double state_bytes, double saved_bytes, int64_t ranks) {
  return (state_bytes + saved_bytes / 2) / static_cast<double>(ranks) + saved_bytes / 2;
}

int64_t least_ranks(double state_bytes, double saved_bytes, double limit_bytes) {
  const double left = limit_bytes - saved_bytes / 2;
  if (!(left > 0)) return 0;
  return static_cast<int64_t>(std::floor((state_bytes + saved_bytes / 2) / left)) + 1;
}

double most_data_parallel(const FeedForward& layer, double tokens, const Accelerator& accelerator) {
  return 1 + 2 * tokens / flops_per_element(layer, accelerator);
}

double most_tensor_parallel_forward(const FeedForward& layer, const Accelerator& accelerator) {
  return 1 + layer.matrices * layer.d_ff / flops_per_element(layer, accelerator);
}

double most_tensor_parallel_backward(const FeedForward& layer, const Accelerator& accelerator) {
  return 1 + 2 * layer.matrices * layer.d_ff / flops_per_element(layer, accelerator);
}

double most_mesh(const FeedForward& layer, double tokens, const Accelerator& accelerator,
                 bool at_once) {
  const double ratio = flops_per_element(layer, accelerator);
  const double most = 2 * layer.matrices * tokens * layer.d_ff / (ratio * ratio);
  return at_once ? most : most / 4;
}

double best_mesh_ratio(const FeedForward& layer, double tokens) {
  return 2 * tokens / (layer.matrices * layer.d_ff);
}

double least_tokens(const FeedForward& layer, const Mesh& mesh, const Accelerator& accelerator,
                    bool at_once) {
  const double ratio = flops_per_element(layer, accelerator);
  // Shares of the computing time that the activations take; the rest is for the weights.
  const double tensor_share =
      mesh.tensor > 1 ? mesh.tensor * ratio / (layer.matrices * layer.d_ff * mesh.tensor_links) : 0;
  if (tensor_share >= 1) return std::numeric_limits<double>::infinity();
  const double tokens = mesh.data > 1 ? mesh.data * ratio / (2 * mesh.data_links) : 0;
  return at_once ? tokens : tokens / (1 - tensor_share);
}

}  // namespace flashstep
