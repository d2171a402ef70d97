"""Products of 8-bit numbers: what is refused; on a GPU that has them values and gradients, eager and compiled."""

import unittest

import needs_torch  # noqa: F401
import torch
import torch.nn.functional as F
from torch.library import opcheck

import flashstep

ON_GPU = (
    torch.cuda.is_available()
    and torch.cuda.get_device_capability() >= (8, 9)
    and "cuda" in flashstep.attention_implementations()
)
SIZES = {"vocab_size": 500, "context_length": 64, "d_model": 128, "num_layers": 1, "num_heads": 2, "d_ff": 256}


def relative_error(found, exact):
    exact = exact.double()
    return float((found.double() - exact).norm() / exact.norm())


def randn(*shape, **options):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, **options)


def with_gradients(function, inputs, dy):
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, dy.to(out.dtype))]


def step(model, loss, tokens):
    model.zero_grad()
    value = loss(tokens, tokens.roll(1, -1))
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


class Refusals(unittest.TestCase):
    def test_what_does_not_fit(self):
        x, weight = torch.zeros(4, 32, dtype=torch.bfloat16), torch.zeros(48, 32, dtype=torch.bfloat16)
        for inputs, sentence in (
            ((x, weight), "on one GPU of compute capability 8.9 or higher, got cpu and cpu"),
            ((x[:, :24], weight[:, :24]), r"multiples of 16, got \[4, 24\] and \[48, 24\]"),
            ((x, weight[:40]), r"multiples of 16, got \[4, 32\] and \[40, 32\]"),
            ((x.float(), weight), "expected x of bfloat16"),
        ):
            with self.assertRaisesRegex(ValueError, sentence):
                flashstep.float8_linear(*inputs)
            with self.assertRaisesRegex(Exception, sentence):
                torch.compile(flashstep.float8_linear, fullgraph=True, dynamic=False)(*inputs)

    def test_layers_are_told(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        flashstep.nn.set_float8_products(model.layers)
        told = [name for name, child in model.named_modules() if getattr(child, "float8", False)]
        self.assertEqual(len(told), 7)
        self.assertNotIn("lm_head", told)
        tokens = torch.zeros(1, 4, dtype=torch.long)
        with self.assertRaisesRegex(ValueError, "float8_linear"), torch.autocast("cpu", torch.bfloat16):
            model(tokens)
        flashstep.nn.set_float8_products(model, False)
        model(tokens)


@unittest.skipUnless(ON_GPU, "a GPU's of compute capability 8.9 or higher")
class Float8(unittest.TestCase):
    def test_values_and_gradients(self):
        for dtype, shape in ((torch.bfloat16, (3, 21, 64)), (torch.float32, (1, 256)), (torch.float32, (512, 128))):
            x, weight = (randn(*s).to(dtype).requires_grad_() for s in (shape, (96, shape[-1])))
            dy = randn(*shape[:-1], 96)
            with torch.autocast("cuda", torch.bfloat16):
                found = with_gradients(flashstep.float8_linear, (x, weight), dy)
                compiled = with_gradients(torch.compile(flashstep.float8_linear, fullgraph=True), (x, weight), dy)
            exact = with_gradients(F.linear, [t.detach().double().requires_grad_() for t in (x, weight)], dy)
            for mine, machine, other, limit in zip(found, compiled, exact, (0.045, 0.07, 0.07), strict=True):
                self.assertLess(relative_error(mine, other), limit)
                self.assertGreater(relative_error(mine, other), 0.02, "not of 8 bits")
                self.assertEqual(machine.dtype, mine.dtype)
                self.assertLess(relative_error(machine, mine), 4e-3)

    def test_lengths_that_are_not_known(self):
        weight = randn(48, 32)
        compiled = torch.compile(flashstep.float8_linear, fullgraph=True, dynamic=True)
        for rows in (21, 33, 64):
            x = randn(2, rows, 32, requires_grad=True)
            dy = randn(2, rows, 48)
            for mine, other in zip(*(with_gradients(lambda x: call(x, weight), (x,), dy) for call in (compiled, flashstep.float8_linear))):
                self.assertTrue(torch.equal(mine, other))

    def test_operators(self):
        for rows in (21, 0):
            for wanted in ((True, True), (True, False), (False, True)):
                x, weight = randn(rows, 32, requires_grad=wanted[0]), randn(48, 32, requires_grad=wanted[1])
                opcheck(torch.ops.flashstep.float8_linear.default, (x, weight))
                some = ("test_schema", "test_autograd_registration", "test_faketensor")  # the rest sums up 8-bit results
                opcheck(torch.ops.flashstep.float8_linear_forward.default, (x, weight, wanted[1]), test_utils=some)

    def test_a_model(self):
        model = flashstep.nn.TransformerLM(**SIZES).cuda()
        tokens = torch.randint(0, 500, (4, 64), device="cuda")
        wanted = step(model, model.loss, tokens)
        flashstep.nn.set_float8_products(model.layers)
        for loss in (model.loss, torch.compile(model.loss, fullgraph=True)):
            with torch.autocast("cuda", torch.bfloat16):
                found = step(model, loss, tokens)
            self.assertLess(abs(float(found[0] - wanted[0])), 0.02 * float(wanted[0]))
            for mine, exact in zip(found[1:], wanted[1:], strict=True):
                self.assertLess(relative_error(mine, exact), 0.2)


if __name__ == "__main__":
    unittest.main()
