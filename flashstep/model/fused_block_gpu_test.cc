// The fused block against the readable one.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/model/fused_block.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpus.h"

namespace flashstep {
namespace {

using at::Tensor;

class FusedBlockGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    torch::manual_seed(9);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

ModelConfig config_of(int64_t width, int64_t inner, int64_t heads, int64_t kv_heads = 0) {
  ModelConfig config;
  config.vocab_size = 32;
  config.context_length = 64;
  config.d_model = width;
  config.d_ff = inner;
  config.num_layers = 1;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  return config;
}

// The block as layers.cc spells it out.
Tensor readable(TransformerBlockImpl& block, const Tensor& x, const BlockContext& context) {
  const Tensor y = x + block.attn->forward(block.ln1->forward(x), context);
  return y + block.ffn->forward(block.ln2->forward(y));
}

using Forward = std::function<Tensor(TransformerBlockImpl&, const Tensor&, const BlockContext&)>;
using testing::kGpu;
Forward fused(Recompute recompute) {
  return [=](auto& block, const auto& x, auto context) {
    context.recompute = recompute;
    return fused_block(x, block, context);
  };
}

struct Case {
  ModelConfig config;
  Tensor x, dy;
  Tensor documents;  // one a row unless given
  TransformerBlock block{nullptr};

  explicit Case(const ModelConfig& given, int64_t batch = 2, int64_t length = 48)
      : config(given),
        x(torch::randn({batch, length, given.d_model}, kGpu)),
        dy(torch::randn({batch, length, given.d_model}, kGpu)),
        block(given, torch::TensorOptions(kGpu)) {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : block->parameters()) {
      if (parameter.dim() == 1) {
        parameter.uniform_(0.5, 1.5);
      } else {
        parameter.normal_(0, 1 / std::sqrt(static_cast<double>(parameter.size(1))));
      }
    }
  }

  // Output, x's gradient and every parameter's.
  std::vector<Tensor> run(const Forward& forward, at::ScalarType compute) {
    TransformerBlock own = block;
    const bool wide = compute == at::kDouble;
    if (wide) {
      own = TransformerBlock(config, torch::TensorOptions(kGpu).dtype(at::kDouble));
      const torch::NoGradGuard no_grad;
      auto from = block->parameters(), to = own->parameters();
      for (size_t i = 0; i < to.size(); ++i) {
        to[i].copy_(from[i]);
        to[i].set_requires_grad(from[i].requires_grad());
      }
    }
    own->zero_grad();
    const RotaryTables tables =
        rotary_tables(x.size(1), config.head_dim(), config.rope_theta).to(kGpu);
    const Tensor input = (wide ? x.to(at::kDouble) : x).detach().clone().requires_grad_();
    if (!wide) {
      at::autocast::set_autocast_enabled(at::kCUDA, true);
      at::autocast::set_autocast_dtype(at::kCUDA, compute);
    }
    const Tensor y = forward(*own, input, {tables, nullptr, Recompute::kNone, documents});
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    y.backward(dy.to(y.scalar_type()));
    std::vector<Tensor> results = {y.detach(), input.grad()};
    for (const Tensor& parameter : own->parameters()) results.push_back(parameter.grad());
    return results;
  }
};

void expect_agreement(Case& c, at::ScalarType dtype) {
  const auto oracle = c.run(readable, at::kDouble), naive = c.run(readable, dtype),
             got = c.run(fused(Recompute::kNone), dtype);
  const double unit = dtype == at::kHalf ? 1e-3 : 8e-3;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), oracle[i].defined()) << i;
    if (!got[i].defined()) continue;
    EXPECT_EQ(got[i].scalar_type(), naive[i].scalar_type()) << i;
    const double largest = oracle[i].abs().max().item<double>();
    EXPECT_TRUE(testing::within_twice_naive(got[i], naive[i], oracle[i], unit * largest))
        << "result " << i << " in " << dtype;
  }
}

// A stream in the products' dtype: both blocks round it, and its gradient, the same number of
// times.
TEST_F(FusedBlockGpu, TakesAShortStream) {
  for (const auto& config : {config_of(128, 352, 2), config_of(64, 72, 4)}) {
    Case c(config);
    c.x = c.x.to(at::kBFloat16);
    expect_agreement(c, at::kBFloat16);
  }
}

TEST_F(FusedBlockGpu, AgreesWithTheReadableBlock) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& config :
         {config_of(64, 176, 4), config_of(120, 328, 3), config_of(768, 3072, 12),
          config_of(768, 328, 12, 4), config_of(512, 64, 4, 1)}) {
      Case c(config);
      expect_agreement(c, dtype);
    }
  }
}

TEST_F(FusedBlockGpu, TakesRowsThatLieApart) {
  Case c(config_of(64, 176, 4));
  const auto run = [&](const Tensor& given) {
    const Tensor x = given.detach().requires_grad_();
    const RotaryTables tables = rotary_tables(x.size(1), 16, 10000.0).to(kGpu);
    const AutocastGuard autocast(at::kCUDA, at::kBFloat16);
    const Tensor y = fused_block(x, *c.block, {tables, nullptr});
    return std::pair(y.detach(), torch::autograd::grad({y.square().sum()}, {x})[0]);
  };
  const Tensor many = torch::randn({4, 6, 64}, kGpu), one = torch::randn({1, 12, 64}, kGpu);
  for (const Tensor& x : {many.narrow(1, 5, 1), one.slice(1, 0, 12, 2),
                          many.narrow(1, 0, 1).narrow(0, 0, 1).expand({4, 6, 64})}) {
    const auto got = run(x), expected = run(x.contiguous());
    EXPECT_TRUE(testing::same_bits(got.first, expected.first)) << x.strides();
    EXPECT_TRUE(testing::same_bits(got.second, expected.second)) << x.strides();
  }
}

// Only our kernels turn gradients back themselves.
TEST_F(FusedBlockGpu, AgreesWithAnyAttention) {
  for (const char* name : {"naive", "auto", "sdpa"}) {  // sdpa's bits need not repeat
    at::globalContext().setDeterministicAlgorithms(std::string(name) != "sdpa", false);
    for (ModelConfig config :
         {config_of(120, 328, 3), config_of(528, 64, 2), config_of(160, 64, 4, 2)}) {
      // D 40, 264 and 40
      config.attention = name;
      for (const int64_t window : {0, 9}) {
        config.window = window;
        Case c(config);
        expect_agreement(c, at::kBFloat16);
        c.documents = document_spans(
            at::randint(5, {c.x.size(0), c.x.size(1)}, at::TensorOptions(kGpu).dtype(at::kLong)),
            3);
        expect_agreement(c, at::kBFloat16);
      }
    }
  }
}

TEST_F(FusedBlockGpu, IsWhatABlockTakesUnderAutocast) {
  Case c(config_of(64, 176, 4));
  const auto block = [](auto& block, const auto& x, const auto& context) {
    EXPECT_TRUE(fused_block_takes(x, block, context));
    return block.forward(x, context);
  };
  const auto taken = c.run(block, at::kBFloat16),
             expected = c.run(fused(Recompute::kNone), at::kBFloat16);
  for (size_t i = 0; i < taken.size(); ++i)
    EXPECT_TRUE(testing::same_bits(taken[i], expected[i])) << i;
}

TEST_F(FusedBlockGpu, GivesTheSameBitsWhateverIsKept) {
  Case c(config_of(160, 328, 4, 2));
  const auto all = c.run(fused(Recompute::kNone), at::kBFloat16);
  for (const Recompute recompute : {Recompute::kNorms, Recompute::kInner, Recompute::kNorms}) {
    const auto less = c.run(fused(recompute), at::kBFloat16);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(testing::same_bits(less[i], all[i])) << i;
  }
}

TEST_F(FusedBlockGpu, LeavesFrozenWeightsWithoutGradients) {
  Case c(config_of(64, 176, 4, 2));
  c.block->attn->k_proj->weight.set_requires_grad(false);
  c.block->ffn->w1->weight.set_requires_grad(false);
  c.block->ffn->w2->weight.set_requires_grad(false);
  c.block->ln2->weight.set_requires_grad(false);
  expect_agreement(c, at::kBFloat16);
}

TEST_F(FusedBlockGpu, SeesWeightsThatSomebodyChanged) {
  Case c(config_of(64, 176, 4));
  c.run(fused(Recompute::kNone), at::kBFloat16);
  {
    const torch::NoGradGuard no_grad;
    c.block->attn->v_proj->weight.mul_(-2);
    c.block->ffn->w3->weight.add_(0.25);
    c.block->ffn->w2->weight.set_data(c.block->ffn->w2->weight.data() * 3);
  }
  expect_agreement(c, at::kBFloat16);
}

TEST_F(FusedBlockGpu, LeavesGradientsInTheDtypeThatTheyAreAskedFor) {
  Case c(config_of(64, 176, 4));
  const auto wide = c.run(fused(Recompute::kNone), at::kBFloat16);
  for (Tensor& parameter : c.block->parameters())
    if (parameter.dim() == 2) parameter.set_grad_dtype(at::kBFloat16);
  const auto narrow = c.run(fused(Recompute::kNone), at::kBFloat16);
  const auto parameters = c.block->parameters();
  for (size_t i = 2; i < narrow.size(); ++i) {
    const bool is_matrix = parameters[i - 2].dim() == 2;
    EXPECT_EQ(narrow[i].scalar_type(), is_matrix ? at::kBFloat16 : at::kFloat);
    EXPECT_EQ(wide[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(testing::same_bits(narrow[i], wide[i].to(narrow[i].scalar_type()))) << i;
  }
}

// What micro-batches add up is the sum of their gradients, in the memory of the first.
TEST_F(FusedBlockGpu, AddsGradientsUp) {
  Case c(config_of(160, 176, 4, 2));
  const auto backward = [&](bool zeroes, std::optional<at::TensorList> only = {}) {
    if (zeroes) c.block->zero_grad();
    const RotaryTables tables = rotary_tables(48, 40, 10000.0).to(kGpu);
    const AutocastGuard autocast(at::kCUDA, at::kBFloat16);
    const Tensor y = fused_block(c.x.detach().requires_grad_(), *c.block, {tables, nullptr});
    y.backward(c.dy.to(y.scalar_type()), /*retain_graph=*/false, /*create_graph=*/false, only);
  };
  const auto gradients = [&] {
    std::vector<Tensor> all;
    for (const Tensor& parameter : c.block->parameters()) all.push_back(parameter.grad());
    return all;
  };
  backward(true);
  std::vector<Tensor> once;
  for (const Tensor& gradient : gradients()) once.push_back(gradient.clone());
  const auto places = [&] {
    std::vector<const void*> all;
    for (const Tensor& gradient : gradients()) all.push_back(gradient.const_data_ptr());
    return all;
  };
  const auto first = places();
  const auto expect_sum = [&](double times, double tolerance) {
    const auto now = gradients();
    for (size_t i = 0; i < once.size(); ++i) {
      const double largest = once[i].abs().max().item<double>();
      EXPECT_TRUE(testing::close(now[i], once[i] * times, tolerance * times * largest)) << i;
    }
  };
  backward(false);
  backward(false);
  EXPECT_EQ(places(), first);
  expect_sum(3, 1e-5);
  // Gradients of a user's own, apart or only some: autograd adds rounded ones.
  for (Tensor& parameter : c.block->parameters())
    parameter.mutable_grad() = parameter.grad().clone();
  backward(false);
  expect_sum(4, 0.01);
  c.block->zero_grad();
  backward(true);
  c.block->attn->k_proj->weight.mutable_grad().zero_();
  c.block->attn->v_proj->weight.mutable_grad().reset();
  c.block->ffn->w3->weight.mutable_grad().reset();
  backward(false);
  const auto expect_times = [&](const Tensor& weight, size_t index, double times) {
    EXPECT_TRUE(testing::close(weight.grad(), once[index] * times,
                               0.02 * once[index].abs().max().item<double>()))
        << index;
  };
  const auto& attn = *c.block->attn;
  expect_times(attn.q_proj->weight, 0, 2);
  expect_times(attn.k_proj->weight, 1, 1);
  expect_times(attn.v_proj->weight, 2, 1);
  expect_times(c.block->ffn->w3->weight, 6, 1);
  // A hook sees the new part alone, and gradients of some inputs are not added to any.
  backward(true);
  Tensor seen;
  const auto hook =
      attn.q_proj->weight.register_hook([&](const Tensor& gradient) { seen = gradient.clone(); });
  backward(false);
  attn.q_proj->weight.remove_hook(hook);
  EXPECT_TRUE(testing::close(seen, once[0], 0.02 * once[0].abs().max().item<double>()));
  expect_times(attn.q_proj->weight, 0, 2);
  backward(true);
  backward(false, at::TensorList(c.block->ffn->w2->weight));
  expect_times(c.block->ffn->w2->weight, 5, 2);
  expect_times(attn.q_proj->weight, 0, 1);
}

TEST_F(FusedBlockGpu, RefusesWhatItCannotCompute) {
  Case odd(config_of(60, 100, 2)), c(config_of(64, 176, 4));
  const RotaryTables tables = rotary_tables(48, 16, 10000.0).to(kGpu);
  EXPECT_FALSE(fused_block_takes(c.x, *c.block, {tables, nullptr}));  // float32 without autocast
  EXPECT_FALSE(fused_block_takes(c.x.cpu(), *c.block, {tables, nullptr}));
  expect_agreement(c, at::kBFloat16);
  const auto forward = [](auto& block, const auto& x, const auto& context) {
    EXPECT_FALSE(fused_block_takes(x, block, context));
    return block.forward(x, context);
  };
  odd.run(forward, at::kBFloat16);
}

TEST_F(FusedBlockGpu, TakesTablesAndNormsOfItsOwnOnly) {
  Case c(config_of(64, 176, 4));
  const RotaryTables tables = rotary_tables(48, 16, 10000.0).to(kGpu);
  const AutocastGuard autocast(at::kCUDA, at::kBFloat16);
  EXPECT_TRUE(fused_block_takes(c.x, *c.block, {tables, nullptr}));
  for (const RotaryTables& other :
       {tables.slice(0, 47), RotaryTables{tables.cos, tables.sin.narrow(1, 0, 7)},
        RotaryTables{tables.cos.to(at::kDouble), tables.sin}}) {
    const BlockContext context{other, nullptr};
    EXPECT_FALSE(fused_block_takes(c.x, *c.block, context));
    EXPECT_THROW(c.block->forward(c.x, context), UserError);
  }
  const RotaryTables apart{tables.cos, tables.sin.cpu()};
  EXPECT_FALSE(fused_block_takes(c.x, *c.block, {apart, nullptr}));
  const Tensor weight = c.block->ln2->weight.detach();
  c.block->ln2->weight.set_data(weight.to(at::kBFloat16));
  EXPECT_FALSE(fused_block_takes(c.x, *c.block, {tables, nullptr}));
}

TEST_F(FusedBlockGpu, CopiesFollowTheirParameters) {
  Tensor a = torch::randn({3, 4}, kGpu).requires_grad_(), b = torch::randn({5, 4}, kGpu);
  const Tensor both = compute_copy({a, b}, at::kBFloat16);
  EXPECT_TRUE(testing::same_bits(both, at::cat({a, b}).detach().to(at::kBFloat16)));
  const torch::NoGradGuard no_grad;
  b.zero_();
  EXPECT_TRUE(
      testing::same_bits(compute_copy({a, b}, at::kBFloat16), at::cat({a, b}).to(at::kBFloat16)));
  // An optimizer that writes both, as a kernel does: the copy is not made again.
  const std::shared_ptr<void> writer = std::make_shared<char>();
  const auto update = [&](float value, bool writes_copy) {
    const Tensor copy = internal::copy_written_with(a);
    a.fill_(value);
    if (writes_copy) copy.fill_(value + 1);
    internal::copy_is_written(a, copy, writer);
  };
  const auto first = [&] { return compute_copy({a, b}, at::kBFloat16)[0][0].item<float>(); };
  const auto version = a._version();
  update(7, true);
  EXPECT_GT(a._version(), version);
  EXPECT_EQ(first(), 8);
  // A stale copy is not the optimizer's to write, and an update that was called off does not hide
  // it.
  a.fill_(3);
  EXPECT_FALSE(internal::copy_written_with(a).defined());
  internal::copy_is_written(a, Tensor(), writer);
  EXPECT_EQ(first(), 3);
  update(10, true);
  EXPECT_EQ(first(), 11);
  // A hand between two replays.
  a.fill_(5);
  internal::refresh_copies_before_replay();
  EXPECT_EQ(internal::copy_written_with(a)[0][0].item<float>(), 5);
  // No version tells of a write through data().
  update(6, true);
  a.data().fill_(4);
  forget_compute_copies();
  EXPECT_EQ(first(), 4);
  EXPECT_EQ(compute_copy(b, at::kFloat).data_ptr(), b.data_ptr());
}

}  // namespace
}  // namespace flashstep
