#include "flashstep/trace/work_class.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace flashstep::tools {
namespace {

using Expected = std::pair<WorkClass, std::vector<const char*>>;

void expect_classes(const std::vector<Expected>& expected,
                    WorkClass (*class_of)(std::string_view)) {
  for (const auto& [work_class, names] : expected) {
    for (const char* name : names)
      EXPECT_EQ(class_name(class_of(name)), std::string(class_name(work_class))) << name;
  }
}

// As Kineto and nsys write them on an H200 with CUDA 13.0.
TEST(WorkClass, KnowsKernelsByTheirNames) {
  const std::vector<Expected> kernels = {
      {WorkClass::kMatmul,
       {"nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_"
        "alignc4_execute_kernel__5x_cublas",
        "void "
        "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>("
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8::Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, 1, 0, "
        "0>(cublasLt::cublasSplitKParams<float>, float const*, float const*)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(...)",
        "void "
        "cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(cutlass_80_simt_sgemm_"
        "256x128_8x4_tn_align1::Params)"}},
      {WorkClass::kAttention,
       {"void flashstep::attention_cuda::forward_kernel<(flashstep::attention_cuda::Element)0, 64, "
        "flashstep::attention_cuda::PlannedTile<...>>(flashstep::attention_cuda::ForwardArguments)",
        "flashstep::attention_cuda::(anonymous "
        "namespace)::backward_prepare_kernel(flashstep::attention_cuda::BackwardArguments, "
        "float4*, long)",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, "
        "false>>(...)",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>(...)",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x128x64_4x1x1_"
        "kernel0_0",
        "void cudnn::fusion::compute_dot_do_o_specialized<false, __nv_bfloat16, 128, 64>(...)"}},
      {WorkClass::kSoftmax,
       {"void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, "
        "false>(...)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxBackwardSmem<4, float, float, float, "
        "at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue>(...)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float, float, float, "
        "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue, int, 3>(float*, float "
        "const*, int)",
        "triton_red_fused__softmax_2"}},
      {WorkClass::kElementwise,
       {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous "
        "namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float "
        "const*, ...>(...)",
        "void at::native::triu_tril_kernel<bool, int, true, 4, false>(...)",
        "void at::native::elementwise_kernel<128, 2, "
        "at::native::gpu_kernel_impl_nocast<at::native::(anonymous "
        "namespace)::masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)...>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous "
        "namespace)::pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, "
        "float)...>",
        "triton_poi_fused_add_mul_0",
        "void flashstep::multi_tensor::<unnamed>::muon_directions_kernel<float>(flashstep::"
        "multi_tensor::MuonArguments)",
        "flashstep::multi_tensor::<unnamed>::advance_steps_kernel(flashstep::multi_tensor::"
        "AdamWArguments)"}},
      {WorkClass::kReduction,
       {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::TensorListMetadata<1>, at::native::(anonymous "
        "namespace)::LpNormFunctor<float, (at::native::NormType)2, float, 1, 1, 0>, float*, "
        "int>(...)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(...)",
        "void flashstep::ops_cuda::(anonymous namespace)::embedding_chunks_kernel<float, "
        "__nv_bfloat16, 8>(flashstep::ops_cuda::EmbeddingBackward)",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, "
        "long>(...)",
        "void cub::CUB_300001_SM_900::detail::radix_sort::DeviceRadixSortOnesweepKernel<...>(...)",
        "void at::native::(anonymous namespace)::krn_partials_per_segment<long>(long*, long "
        "const*, long const*, long)",
        "void at::native::(anonymous namespace)::krn_partial_segment_offset<long>(long*, long "
        "const*, long const*, long const*, long const*)",
        "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float>(float "
        "const*, at::native::TensorListAddresses, int)",
        "void at::native::lpmax_cleanup<float>(float const*, at::native::TensorListAddresses, int)",
        "flashstep::multi_tensor::<unnamed>::square_sums_kernel(NormArguments)",
        "flashstep::multi_tensor::<unnamed>::norm_of_sums_kernel(const double *, long, float *)"}},
      {WorkClass::kCopy,
       {"void "
        "at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::"
        "TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}, ...>(...)",
        "void at::native::vectorized_elementwise_kernel<8, "
        "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, "
        "std::array<char*, 2ul> >(...)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<...>(...)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, ...)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8, "
        "at::native::_cuda_scatter_gather_internal_kernel<false, at::native::OpaqueType<4>, "
        "long>::operator()...>(int, ...)",
        "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(...)",
        "Memcpy HtoD (Pageable -> Device)", "Memset (Device)"}},
      {WorkClass::kCommunication,
       {"void c10d::symmetric_memory::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(...)",
        "Memcpy PtoP (Device -> Device)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}},
      {WorkClass::kOther, {"something_nobody_knows"}},
  };
  expect_classes(kernels, class_of_kernel);
}

TEST(WorkClass, KnowsOperatorsAndNodes) {
  const std::vector<Expected> operators = {
      {WorkClass::kMatmul, {"aten::mm", "aten::baddbmm_"}},
      {WorkClass::kSoftmax, {"aten::_softmax", "aten::_softmax_backward_data"}},
      {WorkClass::kElementwise,
       {"aten::add_", "aten::silu_backward", "aten::_foreach_mul_", "aten::_fused_adamw_",
        "flashstep::adamw_", "flashstep::muon_"}},
      {WorkClass::kReduction,
       {"aten::linalg_vector_norm", "aten::_foreach_norm", "aten::embedding_dense_backward",
        "flashstep::rms_norm_backward",
        "torch::autograd::CppNode<flashstep::(anonymous namespace)::FusedRmsNorm>"}},
      {WorkClass::kCopy, {"aten::copy_", "aten::embedding"}},
      {WorkClass::kHost,
       {"aten::transpose", "aten::t", "MmBackward0",
        "autograd::engine::evaluate_function: CppNode<FusedRmsNorm>",
        "torch::autograd::AccumulateGrad"}},
      {WorkClass::kAttention,
       {"flashstep::attention_backward", "aten::_scaled_dot_product_flash_attention_for_cpu"}},
      {WorkClass::kCommunication, {"gloo:all_reduce"}},
      {WorkClass::kOther, {"aten::nobody_knows"}},
  };
  expect_classes(operators, class_of_operator);
  EXPECT_EQ(class_of_range("norm"), WorkClass::kReduction);
  EXPECT_EQ(class_of_range("layers.3"), WorkClass::kHost);
}

TEST(WorkClass, ShortensKernelsToWhatPeopleCallThem) {
  const std::pair<const char*, const char*> expected[] = {
      {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
       "at::native::MeanOps<float> > >(at::native::ReduceOp<float>)",
       "reduce_kernel"},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
       "std::array<char*, 3ul> >(int)",
       "vectorized_elementwise_kernel (CUDAFunctor_add)"},
      {"void at::native::elementwise_kernel<128, 2, "
       "at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::"
       "TensorIteratorBase&)::{lambda()#3}> >(int)",
       "elementwise_kernel (direct_copy_kernel_cuda)"},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
       "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous "
       "namespace)::FusedAdamMathFunctor<float, 4> >(int)",
       "multi_tensor_apply_kernel (FusedAdamMathFunctor)"},
      {"flashstep::attention_cuda::(anonymous "
       "namespace)::backward_prepare_kernel(flashstep::attention_cuda::Args, float4*)",
       "backward_prepare_kernel"},
      {"void "
       "cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(cutlass_80_simt_sgemm_"
       "128x256_8x4_nt_align1::Params)",
       "cutlass_80_simt_sgemm_128x256_8x4_nt_align1"},
      {"cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>",
       "cutlass_80_simt_sgemm_128x128_8x4_nn_align1"},
      {"void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, "
       "float> >(int)",
       "GemmUniversal"},
      {"void cutlass::Kernel2<>(int)", "Kernel2"},
      {"void ours::Kernel2<int>(int)", "Kernel2"},
      {"nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT"},
      {"Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"},
      {"aten::mm", "mm"},
      {"torch::autograd::CppNode<flashstep::(anonymous namespace)::FusedRmsNorm>",
       "FusedRmsNorm (backward)"},
      {"", ""},
      {"broken<template", "broken"},
  };
  for (const auto& [name, shortened] : expected) EXPECT_EQ(short_kernel_name(name), shortened);
}

OperatorWork work(std::string_view name, const std::vector<Operand>& operands) {
  return operator_work(name, operands);
}

TEST(OperatorWork, CountsMatrixProducts) {
  const Operand a{{3, 5}, 4}, b{{5, 7}, 4}, bias{{7}, 4}, number{{}, 0};
  EXPECT_EQ(work("aten::mm", {a, b}).flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(work("aten::mm", {a, b}).bytes, 4 * (15 + 35 + 21));
  EXPECT_EQ(work("aten::addmm", {bias, a, b, number, number}).flops, 2 * 3 * 5 * 7);
  const Operand d{{3, 7}, 4};
  EXPECT_EQ(work("aten::addmm", {d, a, b, number, number, d}).flops, 2 * 3 * 5 * 7) << "into d";
  EXPECT_EQ(work("aten::bmm", {{{2, 3, 5}, 2}, {{2, 5, 7}, 2}}).flops, 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(work("aten::bmm", {{{2, 3, 5}, 2}, {{2, 5, 7}, 2}}).bytes, 2 * 2 * (15 + 35 + 21));
  EXPECT_EQ(work("aten::linear", {a, b}).flops, 0) << "its aten::mm is counted";
  EXPECT_EQ(work("aten::mm", {a, {{6, 7}, 4}}).flops, 0) << "shapes that do not fit";
}

TEST(OperatorWork, CountsAttentionUnderItsMask) {
  const Operand q{{2, 3, 4, 8}, 2}, lse{{2, 3, 4}, 4};
  // 4 B H D for each of 4 * 5 / 2 pairs.
  const double forward = 4 * 2 * 3 * 8 * 10;
  EXPECT_EQ(work("flashstep::attention_forward", {q, q, q}).flops, forward);
  EXPECT_EQ(work("flashstep::attention_backward", {q, lse, q, q, q, q, lse}).flops, 2.5 * forward);
  const Operand k{{2, 3, 9, 8}, 2};
  EXPECT_EQ(work("flashstep::attention_forward", {q, k, k}).flops, 4 * 2 * 3 * 8 * 4 * 9)
      << "more keys than queries: all of them";
  EXPECT_EQ(work("flashstep::attention_forward", {{{4, 8}, 4}, {{4, 8}, 4}, {{4, 8}, 4}}).flops,
            4 * 8 * 10)
      << "without batches and heads";
}

TEST(OperatorWork, CountsTheBytesThatMustMove) {
  const Operand x{{6, 4}, 4}, row{{4}, 4}, number{{}, 0}, half{{6, 4}, 2};
  EXPECT_EQ(work("aten::mul", {x, row}).bytes, 4 * (24 + 4 + 24));
  EXPECT_EQ(work("aten::mul", {row, x}).bytes, 4 * (24 + 4 + 24)) << "broadcast";
  EXPECT_EQ(work("aten::mul_", {x, row}).bytes, 4 * (24 + 4 + 24));
  EXPECT_EQ(work("aten::add", {x, number}).bytes, 4 * 48);
  EXPECT_EQ(work("aten::copy_", {half, x, number}).bytes, 6 * 24);
  EXPECT_EQ(work("aten::zero_", {x}).bytes, 96);
  EXPECT_EQ(work("aten::sum", {x, number}).bytes, 96);
  EXPECT_EQ(work("aten::view", {x}).bytes, 0);
  EXPECT_EQ(work("aten::to", {x}).bytes, 0);
  EXPECT_EQ(work("aten::embedding", {{{100, 4}, 4}, {{3}, 8}}).bytes, 3 * 8 + 2 * 3 * 16);
  EXPECT_EQ(work("aten::index_select", {{{100, 4}, 4}, {{}, 0}, {{3}, 8}}).bytes,
            3 * 8 + 2 * 3 * 16)
      << "rows, not the whole table";
  EXPECT_EQ(work("aten::gather", {{{100, 4}, 4}, {{}, 0}, {{3, 4}, 8}, {{3, 4}, 4}}).bytes, 2 * 48);
  EXPECT_EQ(work("flashstep::rms_norm_forward", {x, half}).bytes, 6 * 24) << "read and written";
  EXPECT_EQ(work("flashstep::swiglu_backward", {x, x, half, x, x}).bytes, 4 * 96 + 48);
  const OperatorWork of_8_bits = work("flashstep::mm", {{{6, 8}, 1}, {{8, 4}, 1}});
  EXPECT_EQ(of_8_bits.flops, 2 * 6 * 8 * 4);
  EXPECT_EQ(of_8_bits.bytes, 48 + 32 + 2 * 24) << "the result has 16";
  EXPECT_EQ(work("flashstep::to_float8", {half, {{6, 4}, 1}}).bytes, 48 + 24);
  EXPECT_EQ(work("flashstep::swiglu_to_float8", {half, {{6, 4}, 1}}).bytes, 48 + 24);
  EXPECT_EQ(work("flashstep::largest", {half}).bytes, 48);
  EXPECT_EQ(work("flashstep::cross_entropy", {x}).bytes, 96) << "logits are only read";
  EXPECT_EQ(work("flashstep::cross_entropy", {x, x}).bytes, 2 * 96) << "and their gradient written";
  EXPECT_EQ(work("aten::_fused_adamw_", {x, x, x, x}).bytes, 7 * 96);
  EXPECT_EQ(work("aten::add", {}).bytes, 0);
}

TEST(OperatorWork, KnowsDtypesByTheProfilersNames) {
  EXPECT_EQ(profiled_element_bytes("c10::BFloat16"), 2);
  EXPECT_EQ(profiled_element_bytes("c10::Float8_e5m2"), 1);
  EXPECT_EQ(profiled_element_bytes("long int"), 8);
  EXPECT_EQ(profiled_element_bytes("TensorList"), 4);
  EXPECT_EQ(profiled_element_bytes("Scalar"), 0);
  EXPECT_EQ(profiled_element_bytes(""), 0);
}

}  // namespace

}  // namespace flashstep::tools
