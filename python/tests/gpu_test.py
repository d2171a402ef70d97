"""On a GPU: what the CPU tests of operators, optimizers and modules say, and lower precision, machine code of
torch.compile, memory and profiles."""

import unittest

import needs_gpu
import torch
import torch.nn.functional as F

import flashstep
from flashstep import profiling

needs_gpu.need(1)
torch.set_default_device(needs_gpu.DEVICE)
DEVICE = needs_gpu.DEVICE

from compiled_loss_test import CompiledLoss  # noqa: E402, F401
from layouts_test import Layouts  # noqa: E402, F401
from operators_test import Operators, randn, reference, rotated  # noqa: E402, F401
from training_test import Modules, Optimizers  # noqa: E402, F401

SIZES = {"vocab_size": 500, "context_length": 64, "d_model": 128, "num_layers": 2, "num_heads": 2, "d_ff": 256}
ON_GPU = unittest.skipUnless(DEVICE == "cuda", "a GPU's")


def with_gradients(function, inputs, weights=None):
    out = function(*inputs)
    if weights is None:
        weights = torch.randn(out.shape, generator=torch.Generator(DEVICE).manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, weights)], weights


def step(model, loss, tokens):
    model.zero_grad()
    value = loss(tokens, tokens.roll(1, -1))
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


class Precision(unittest.TestCase):
    def check(self, name, ours, exact, inputs, tolerance):
        """Results and gradients against those in float64 of the same inputs."""
        found, weights = with_gradients(ours, inputs)
        wide = [x.detach().double().requires_grad_() for x in inputs]
        wanted, _ = with_gradients(exact, wide, weights.double())
        for which, (mine, other) in enumerate(zip(found, wanted, strict=True)):
            error = needs_gpu.relative_error(mine, other)
            self.assertLess(error, tolerance, f"{name}, {'result' if which == 0 else f'gradient {which}'}")

    def test_attention(self):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)):
            for dim, queries, keys, causal in ((64, 257, 257, True), (128, 200, 333, False), (40, 96, 96, True)):
                q = torch.randn(2, 8, queries, dim, dtype=dtype, requires_grad=True)
                k, v = (torch.randn(2, 2, keys, dim, dtype=dtype, requires_grad=True) for _ in range(2))

                def exact(q, k, v, causal=causal):
                    return reference(q, *(x.repeat_interleave(4, 1) for x in (k, v)), causal)[0]

                def ours(q, k, v, causal=causal):
                    return flashstep.attention(q, k, v, causal=causal)

                self.check(f"{dtype}, {dim}, causal {causal}", ours, exact, (q, k, v), tolerance)

    def test_operators(self):
        targets = torch.randint(0, 501, (64,))
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):

            def make(*shape, dtype=dtype, scale=1.0):
                return (scale * torch.randn(*shape)).to(dtype).requires_grad_()

            for name, ours, exact, inputs in (
                (
                    "rms_norm",
                    flashstep.rms_norm,
                    lambda x, w: F.rms_norm(x, (192,), w, 1e-5),
                    (make(33, 192), make(192)),
                ),
                ("swiglu", flashstep.swiglu, lambda a, b: F.silu(a) * b, (make(33, 192), make(33, 192))),
                (
                    "cross_entropy",
                    lambda x: flashstep.cross_entropy(x, targets),
                    lambda x: F.cross_entropy(x, targets),
                    (make(64, 501),),
                ),
                (
                    "linear_cross_entropy",
                    lambda x, w: flashstep.linear_cross_entropy(x, w, targets),
                    lambda x, w: F.cross_entropy(x @ w.T, targets),
                    (make(64, 96), make(501, 96, scale=0.1)),
                ),
            ):
                self.check(f"{name}, {dtype}", ours, exact, inputs, tolerance)
        x = torch.randn(2, 4, 100, 64)
        turned = flashstep.rope(x.bfloat16())
        self.assertLess(needs_gpu.relative_error(turned, rotated(x.bfloat16().float(), torch.arange(100))), 1e-2)

    def test_a_model_under_autocast(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        tokens = torch.randint(0, 500, (4, 64))
        wanted = step(model, model.loss, tokens)
        for dtype in (torch.bfloat16, torch.float16) if DEVICE == "cuda" else (torch.bfloat16,):
            scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, enabled=dtype == torch.float16)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype):
                loss = model.loss(tokens, tokens.roll(1, -1))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            self.assertLess(abs(float(loss.detach() - wanted[0])), 0.01 * float(wanted[0]))
            for (name, parameter), exact in zip(model.named_parameters(), wanted[1:]):
                self.assertEqual(parameter.grad.dtype, torch.float32, name)
                self.assertLess(needs_gpu.relative_error(parameter.grad, exact), 0.05, name)


class Compiled(unittest.TestCase):
    def test_machine_code(self):
        model = flashstep.nn.TransformerLM(**{**SIZES, "num_layers": 1})
        compiled = torch.compile(model.loss, fullgraph=True)
        for length in (64, 48, 37):  # the second is compiled for any length
            tokens = torch.randint(0, 500, (2, length))
            for mine, other in zip(step(model, compiled, tokens), step(model, model.loss, tokens)):
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
        low = torch.compile(model.loss, fullgraph=True)
        tokens = torch.randint(0, 500, (2, 64))
        with torch.autocast(DEVICE, torch.bfloat16):
            pairs = zip(step(model, low, tokens), step(model, model.loss, tokens))
        for mine, other in pairs:
            self.assertLess(needs_gpu.relative_error(mine, other), 0.03)

    @ON_GPU
    def test_in_the_compilers_graphs(self):
        model = flashstep.nn.TransformerLM(**{**SIZES, "num_layers": 1})
        compiled = torch.compile(model.loss, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            tokens = torch.randint(0, 500, (2, 64))
            torch.compiler.cudagraph_mark_step_begin()
            found = [x.clone() for x in step(model, compiled, tokens)]
            for mine, other in zip(found, step(model, model.loss, tokens)):
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


class Edges(unittest.TestCase):
    @ON_GPU
    def test_after_torchs_new_tf32_switches(self):
        x, weight = torch.randn(16, 32), torch.randn(48, 32)
        targets = torch.randint(0, 48, (16,))
        matmul = torch.backends.cuda.matmul
        before = matmul.fp32_precision
        try:
            for precision, tolerance in (("ieee", 1e-6), ("tf32", 1e-2)):
                matmul.fp32_precision = precision
                for dtype in (torch.float32, torch.bfloat16):
                    loss = flashstep.linear_cross_entropy(x.to(dtype), weight.to(dtype), targets)
                    exact = F.cross_entropy(x.to(dtype).double() @ weight.to(dtype).double().T, targets)
                    self.assertLess(abs(float(loss - exact)), (tolerance if dtype == torch.float32 else 2e-2) * float(exact))
        finally:
            matmul.fp32_precision = before

    @ON_GPU
    def test_more_batches_than_a_grid_has_rows(self):
        q, k, v = (torch.randn(70000, 64, 128, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        grads = torch.autograd.grad(flashstep.attention(q, k, v).sum(), (q, k, v))
        some = torch.tensor([0, 65534, 65535, 65536, 69999])
        wide = [x.detach()[some].double().requires_grad_() for x in (q, k, v)]
        exact = torch.autograd.grad(F.scaled_dot_product_attention(*wide).sum(), wide)
        for mine, other in zip(grads, exact, strict=True):
            self.assertLess(float((mine[some] - other).abs().max()), 0.05)


class Use(unittest.TestCase):
    @ON_GPU
    def test_logits_are_never_whole(self):
        rows, vocab = 8192, 32768
        x = torch.randn(rows, 64, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.randn(vocab, 64, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(0, vocab, (rows,))
        plain = [each.detach().float().requires_grad_() for each in (x, weight)]
        F.cross_entropy(plain[0] @ plain[1].T, targets).backward()
        for loss in (flashstep.linear_cross_entropy, torch.compile(flashstep.linear_cross_entropy, fullgraph=True)):
            x.grad = weight.grad = None
            loss(x, weight, targets).backward()
            found = [x.grad, weight.grad]
            x.grad = weight.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            loss(x, weight, targets).backward()
            self.assertLess(torch.cuda.max_memory_allocated() - before, rows * vocab * 2 // 2)
            for name, mine, exact in zip(("x", "weight"), found, plain, strict=True):
                self.assertLess(needs_gpu.relative_error(mine, exact.grad), 2e-2, name)

    def test_batches_come_to_the_device(self):
        inputs, targets = flashstep.BatchSampler(
            torch.arange(100, device="cpu"), batch_size=3, context_length=5
        ).at(2, DEVICE)
        self.assertEqual((inputs.device.type, targets.device.type), (DEVICE, DEVICE))
        self.assertTrue(torch.equal(targets, inputs + 1))

    def test_a_profile(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        tokens = torch.randint(0, 500, (2, 64))

        def work():
            with profiling.range("forward"):
                loss = model.loss(tokens, tokens)
            with profiling.range("backward"):
                loss.backward()

        classes = profiling.profile(work, module=model).tables["classes"]["class"]
        self.assertIn("matmul", classes)
        self.assertIn("attention", classes)


if __name__ == "__main__":
    unittest.main()
