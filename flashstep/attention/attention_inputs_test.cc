// What attention() takes and what it refuses, in which layouts, contexts and threads.
#include <thread>

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include "flashstep/attention.h"
#include "flashstep/attention/attention_test.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_testing::random_inputs;
using testing::refusal;

template <typename Field, typename Value>
AttentionOptions with(Field AttentionOptions::*field, Value value) {
  AttentionOptions options;
  options.*field = value;
  return options;
}

TEST(Attention, NamesWhatIsWrong) {
  const auto q = torch::zeros({2, 3, 5, 8});
  const auto says = [&](const std::string& text, const std::function<void()>& call) {
    EXPECT_NE(refusal(call).find(text), std::string::npos) << refusal(call);
  };
  says("expected tensors q, k and v, got an undefined k", [&] { attention(q, Tensor(), q); });
  says("expected q of shape (B..., N, D)", [&] { attention(torch::zeros(3), q, q); });
  says("expected k of rank 4", [&] { attention(q, torch::zeros({5, 8}), q); });
  says("expected k of shape (B..., M, 8) with", [&] {
    attention(q, torch::zeros({2, 3, 5, 9}), q);
  });
  says("expected v of shape", [&] { attention(q, q, torch::zeros({2, 3, 4, 8})); });
  says("expected v of dtype Float", [&] { attention(q, q, q.to(at::kDouble)); });
  for (const auto dtype : {at::kLong, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const std::string name : {"auto", "naive", "sdpa"}) {
      says("[attention] expected q of float32, bfloat16, float16 or float64, got ", [&] {
        const auto other = q.to(dtype);
        attention(other, other, other, with(&AttentionOptions::implementation, name));
      });
    }
  }
  says("expected implementation to be one of auto, naive, ",
       [&] { attention(q, q, q, with(&AttentionOptions::implementation, "flash")); });
  says("finite scale", [&] { attention(q, q, q, with(&AttentionOptions::scale, NAN)); });
  says("expected a window of at least 1 key, with causal, got 4 without causal",
       [&] { attention(q, q, q, with(&AttentionOptions::window, 4)); });
  says("expected a window of at least 1 key, with causal, got 0", [&] {
    AttentionOptions options;
    options.causal = true;
    options.window = 0;
    attention(q, q, q, options);
  });
  const auto spans = document_spans(torch::zeros({2, 5}, at::kLong));
  const auto of_documents = [&](const Tensor& x, const Tensor& keys, const Tensor& documents) {
    says("with documents, got q ",
         [&] { attention(x, keys, keys, with(&AttentionOptions::documents, documents)); });
  };
  of_documents(q, q.narrow(2, 0, 4), spans);
  of_documents(q[0], q[0], spans);
  for (const auto& wrong : {spans[0], spans.narrow(2, 0, 4), spans.to(at::kLong)}) {
    says("expected documents [2, 2, 5] of Int on cpu, as document_spans() gives them, got ",
         [&] { attention(q, q, q, with(&AttentionOptions::documents, wrong)); });
  }
  says("[document_spans] expected ids (B..., N), got an", [&] { document_spans(Tensor()); });
  says("[document_spans] expected ids (B..., N) of integers, got [2, 3, 5, 8] of Float",
       [&] { document_spans(q); });
  says("divides q's", [&] {
    attention(q, torch::zeros({2, 2, 5, 8}), torch::zeros({2, 2, 5, 8}));
  });
  says("divides q's", [&] {
    attention(q, torch::zeros({2, 6, 5, 8}), torch::zeros({2, 6, 5, 8}));
  });
  // Without a head dimension leading ones are batches: eight queries do not share two keys.
  says("expected k of shape (B..., M, 8) with q's leading dimensions, got [2, 5, 8]", [&] {
    attention(torch::zeros({8, 5, 8}), torch::zeros({2, 5, 8}), torch::zeros({2, 5, 8}));
  });
  says("expected k of shape (B..., M, 8) with", [&] {
    attention(torch::zeros({8, 4, 5, 8}), torch::zeros({2, 4, 5, 8}), torch::zeros({2, 4, 5, 8}));
  });
  EXPECT_NO_THROW(
      attention(torch::zeros({2, 8, 5, 8}), torch::zeros({2, 2, 5, 8}), torch::zeros({2, 2, 5, 8})))
      << "four query heads to a key head";
  const auto wide_rows = torch::zeros({2, 3, 5, 257});
  says("implementation cpu expected a head dim D from 1 to 256, got 257", [&] {
    attention(wide_rows, wide_rows, wide_rows, with(&AttentionOptions::implementation, "cpu"));
  });
  says("implementation cpu expected float32, bfloat16 or float16, got Double", [&] {
    const auto wide = q.to(at::kDouble);
    attention(wide, wide, wide, with(&AttentionOptions::implementation, "cpu"));
  });
  for (const auto& some : {q, q.narrow(2, 0, 0)}) {
    says("sdpa gives no logsumexp", [&] {
      attention_with_logsumexp(some, q, q, with(&AttentionOptions::implementation, "sdpa"));
    });
  }
}

TEST(Attention, ResultsHaveTheLayoutOfTheirInputs) {
  const auto q = torch::randn({2, 9, 4, 16}).transpose(1, 2).requires_grad_();  // (B, H, N, D)
  for (const std::string name : {"tiled", "cpu"}) {
    AttentionOptions options;
    options.implementation = name;
    const auto out = attention(q, q, q, options);
    EXPECT_TRUE(out.transpose(1, 2).is_contiguous()) << name;
  }
}

TEST(Attention, DoubleBackwardIsRefused) {
  const auto q = torch::randn({1, 1, 5, 8}).requires_grad_();
  AttentionOptions options;
  options.implementation = "cpu";
  const auto out = attention(q, q, q, options);
  // The gradient of a plain sum is a constant: then q, k and v alone ask for second derivatives.
  for (const auto& loss : {out.pow(2).sum(), out.sum()}) {
    const auto gradient = torch::autograd::grad({loss}, {q}, {}, true, /*create_graph=*/true)[0];
    const auto twice = [&] { torch::autograd::grad({gradient.pow(2).sum()}, {q}); };
    EXPECT_NE(
        refusal(twice).find("second derivatives are available with implementation naive only"),
        std::string::npos)
        << refusal(twice);
  }
}

TEST(Attention, RowsThatOverlapGiveWhatTheirCopiesGive) {
  torch::manual_seed(11);
  const auto series = torch::randn({2, 40});
  const auto windows = series.unfold(1, 16, 1);  // (2, 25, 16), strides (40, 1, 1)
  const auto copies = windows.contiguous();
  AttentionOptions options;
  options.causal = true;
  for (const std::string name : {"tiled", "cpu"}) {
    options.implementation = name;
    const auto gradients = [&](const Tensor& rows) {
      const auto q = rows.detach().requires_grad_();
      const auto out = attention(q, q, q, options);
      return std::pair(out.detach(), torch::autograd::grad({out.pow(2).sum()}, {q})[0]);
    };
    const auto got = gradients(windows), expected = gradients(copies);
    EXPECT_EQ(got.first.stride(-1), 1) << name;
    EXPECT_TRUE(testing::same_bits(got.first, expected.first)) << name;
    EXPECT_TRUE(testing::same_bits(got.second, expected.second)) << name;
  }
}

TEST(Attention, DeterministicIsAsTheContextSaysUnlessGiven) {
  static bool deterministic;
  const auto observer = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(call.name()) == "flashstep::attention_forward") {
          deterministic = call.inputs()[6].toBool();
        }
        return nullptr;
      }).needsInputs(true));
  const auto q = torch::randn({1, 2, 5, 8});
  auto& context = at::globalContext();
  for (const bool strict : {true, false}) {
    context.setDeterministicAlgorithms(strict, /*warn_only=*/false);
    deterministic = !strict;
    attention(q, q, q, with(&AttentionOptions::implementation, "cpu"));
    EXPECT_EQ(deterministic, strict);
    AttentionOptions options;
    options.implementation = "cpu";
    options.deterministic = !strict;
    attention(q, q, q, options);
    EXPECT_EQ(deterministic, !strict) << "given";
  }
  at::removeCallback(observer);
}

// The operators stand open beside attention().
TEST(Attention, KernelOperatorsRefuseWhatDoesNotFit) {
  const auto q = torch::randn({2, 3, 5, 8}), k = torch::randn({2, 3, 7, 8});
  const auto forward = [](const Tensor& q, const Tensor& k, const Tensor& v, const char* kernel) {
    std::vector<c10::IValue> stack = {q, k,     v,      1.0,           false,
                                      0, false, kernel, c10::IValue(), c10::IValue()};
    c10::Dispatcher::singleton()
        .findSchemaOrThrow("flashstep::attention_forward", "")
        .callBoxed(stack);
    return std::pair(stack.at(0).toTensor(), stack.at(1).toTensor());
  };
  const auto says = [&](const std::string& text, const std::function<void()>& call) {
    EXPECT_NE(refusal(call).find(text), std::string::npos) << refusal(call);
  };
  says("expected k of rank 4", [&] { forward(q, k[0], k[0], "cpu"); });
  says("expected v of shape", [&] { forward(q, k, q, "cpu"); });
  says("expected v of dtype Float", [&] { forward(q, k, k.to(at::kDouble), "cpu"); });
  says("kernel cpu expected a head dim D", [&] {
    const auto wide = torch::randn({1, 1, 4, 264});
    forward(wide, wide, wide, "cpu");
  });
  says("expected a kernel of this build", [&] { forward(q, k, k, "naive"); });
  says("expected a window of at least 1 key, with causal, got -1", [&] {
    std::vector<c10::IValue> stack = {q, k, k, 1.0, true, 0, false, "cpu", -1, c10::IValue()};
    c10::Dispatcher::singleton()
        .findSchemaOrThrow("flashstep::attention_forward", "")
        .callBoxed(stack);
  });
  says("expected diagonal 0 with documents, got 3", [&] {
    const auto spans = document_spans(torch::zeros({2, 5}, at::kLong));
    std::vector<c10::IValue> stack = {q, q, q, 1.0, true, 3, false, "cpu", c10::IValue(), spans};
    c10::Dispatcher::singleton()
        .findSchemaOrThrow("flashstep::attention_forward", "")
        .callBoxed(stack);
  });
  says("expected contiguous documents, got [2, 2, 5] of strides", [&] {
    const auto apart = document_spans(torch::zeros({5, 2}, at::kLong).t()).transpose(0, 1);
    std::vector<c10::IValue> stack = {q, q, q, 1.0, false, 0, false, "cpu", c10::IValue(), apart};
    c10::Dispatcher::singleton()
        .findSchemaOrThrow("flashstep::attention_forward", "")
        .callBoxed(stack);
  });
  says("expected a query and a key",
       [&] { forward(q, k.narrow(2, 0, 0), k.narrow(2, 0, 0), "cpu"); });
  const auto [out, logsumexp] = forward(q, k, k, "cpu");
  const auto backward = [&](const Tensor& grad_out, const c10::IValue& grad_logsumexp,
                            const Tensor& out, const Tensor& logsumexp, const c10::IValue& cos = {},
                            const c10::IValue& sin = {}) {
    std::vector<c10::IValue> stack = {
        grad_out, grad_logsumexp, q,     k,   k,   out,           logsumexp,    1.0, false,
        0,        false,          "cpu", cos, sin, c10::IValue(), c10::IValue()};
    c10::Dispatcher::singleton()
        .findSchemaOrThrow("flashstep::attention_backward", "")
        .callBoxed(stack);
  };
  EXPECT_NO_THROW(backward(q, c10::IValue(), out, logsumexp));
  says("expected grad_out [2, 3, 5, 8] of Float", [&] { backward(k, {}, out, logsumexp); });
  says("expected grad_out", [&] { backward(q.to(at::kHalf), {}, out, logsumexp); });
  says("expected out", [&] { backward(q, {}, out[0], logsumexp); });
  says("expected logsumexp [2, 3, 5]", [&] { backward(q, {}, out, logsumexp[0]); });
  says("expected grad_logsumexp [2, 3, 5]", [&] { backward(q, logsumexp[0], out, logsumexp); });
  const auto turns = torch::ones({5, 4});
  says("got one of them", [&] { backward(q, {}, out, logsumexp, turns); });
  says("for the kernel cuda", [&] { backward(q, {}, out, logsumexp, turns, turns); });
}

TEST(Attention, MixedTf32SwitchesDoNotStopIt) {
  auto& context = at::globalContext();
  const auto backend = at::Float32Backend::CUDA;
  const auto op = at::Float32Op::MATMUL;
  const auto before = context.float32Precision(backend, op);
  context.setAllowTF32CuBLAS(false);
  context.setFloat32Precision(backend, op, at::Float32Precision::TF32);
  EXPECT_ANY_THROW(context.allowTF32CuBLAS());  // PyTorch's own answer to such a program
  const auto q = torch::randn({1, 2, 5, 8});
  EXPECT_NO_THROW(attention(q, q, q, with(&AttentionOptions::implementation, "cpu")));
  context.setAllowTF32CuBLAS(false);
  context.setFloat32Precision(backend, op, before);
}

TEST(Attention, AutocastRoundsToItsDtype) {
  const auto q = torch::randn({1, 2, 5, 8}).requires_grad_();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto out = attention(q, q, q.detach().to(at::kBFloat16));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  out.sum().backward();
  EXPECT_EQ(q.grad().scalar_type(), at::kFloat);
}

TEST(Attention, MetaTensorsGiveShapes) {
  const auto q = torch::empty({2, 4, 7, 16}, torch::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const auto k = torch::empty({2, 2, 9, 16}, q.options());
  const auto [out, logsumexp] = attention_with_logsumexp(q, k, k);
  EXPECT_TRUE(out.is_meta() && logsumexp.is_meta());
  EXPECT_EQ(out.sizes(), q.sizes());
  EXPECT_EQ(logsumexp.sizes(), q.sizes().slice(0, 3));
  EXPECT_EQ(logsumexp.scalar_type(), at::kFloat);
}

// A tensor of these sizes that says it is on a GPU, where there need be none: it has no memory.
Tensor on_a_gpu(at::IntArrayRef sizes) {
  auto x = at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                    caffe2::TypeMeta::Make<at::BFloat16>(),
                                                    c10::Device(at::kCUDA, 0));
  x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return x;
}

TEST(Attention, NothingToComputeIsTheFormulasOnEveryDevice) {
  const struct {
    std::vector<int64_t> q, k;
  } shapes[] = {{{2, 4, 0, 64}, {2, 4, 9, 64}},
                {{2, 4, 9, 64}, {2, 4, 0, 64}},
                {{0, 4, 9, 64}, {0, 4, 9, 64}},
                {{2, 0, 9, 64}, {2, 0, 9, 64}},
                {{0, 64}, {0, 64}}};
  const torch::TensorOptions bf16 = at::kBFloat16;
  for (const auto& shape : shapes) {
    const auto q = torch::zeros(shape.q, bf16), k = torch::zeros(shape.k, bf16);
    const auto far = on_a_gpu(shape.k);
    EXPECT_EQ(attention_auto(on_a_gpu(shape.q), far, far), "naive");
    EXPECT_EQ(attention_auto(q, k, k), "naive");
    for (const auto device : {at::kCPU, at::kMeta}) {
      const auto leaf = q.to(device).requires_grad_(), keys = k.to(device).requires_grad_();
      EXPECT_EQ(attention_auto(leaf, keys, keys), "naive") << device;
      const auto [out, logsumexp] = attention_with_logsumexp(leaf, keys, keys);
      EXPECT_EQ(out.sizes(), q.sizes());
      EXPECT_EQ(logsumexp.sizes(), q.sizes().slice(0, q.dim() - 1));
      const auto gradients = torch::autograd::grad({out, logsumexp}, {leaf, keys},
                                                   {at::ones_like(out), at::ones_like(logsumexp)});
      EXPECT_EQ(gradients[0].sizes(), q.sizes());
      EXPECT_EQ(gradients[1].sizes(), k.sizes());
      if (device == at::kMeta) continue;
      EXPECT_TRUE(testing::close(out, torch::zeros(shape.q, bf16), 0));
      for (const auto& g : gradients) EXPECT_TRUE(testing::close(g, at::zeros_like(g), 0));
    }
  }
}

TEST(Attention, IsAnOperator) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("flashstep::attention", "");
  const auto q = torch::randn({1, 2, 5, 8});
  const auto documents = document_spans(torch::tensor({{0, 0, 1, 1, 1}}));
  std::vector<c10::IValue> stack = {
      q, q, q, true, false, 3, documents, c10::IValue(), "auto", c10::IValue()};
  op.callBoxed(stack);
  AttentionOptions options;
  options.causal = true;
  options.window = 3;
  options.documents = documents;
  EXPECT_TRUE(testing::same_bits(stack.at(0).toTensor(), attention(q, q, q, options)));
}

TEST(Attention, NothingIsKeptWithoutGradients) {
  const auto q = torch::randn({1, 2, 5, 8}).requires_grad_();
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(attention(q, q, q).requires_grad());
}

TEST(Attention, FourThreadsAtOnceAgree) {
  torch::manual_seed(9);
  const auto inputs = random_inputs({{1, 2}, 0, 150, 150, 32}, at::kFloat, at::kCPU);
  AttentionOptions causal;
  causal.causal = true;
  for (const std::string name : {"tiled", "cpu"}) {
    causal.implementation = name;
    const auto gradients = [&] {
      const auto q = inputs.q.clone().requires_grad_(), k = inputs.k.clone().requires_grad_();
      const auto out = attention(q, k, inputs.v, causal);
      const auto g = torch::autograd::grad({out}, {q, k}, {inputs.grad_out});
      return std::vector<Tensor>{out.detach(), g[0], g[1]};
    };
    const auto alone = gradients();
    std::vector<std::vector<Tensor>> results(4);
    std::vector<std::thread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = gradients(); });
    for (auto& thread : threads) thread.join();
    for (const auto& result : results) {
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(testing::same_bits(result[i], alone[i])) << name << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace flashstep
