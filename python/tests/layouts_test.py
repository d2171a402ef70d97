"""Operators from Python: inputs that lie in memory in unusual ways, or have no elements."""

import unittest

import needs_torch  # noqa: F401
import torch
import torch.nn.functional as F

import flashstep
from operators_test import rotated


class Layouts(unittest.TestCase):
    def test_rope_of_windows_that_overlap(self):
        numbers = torch.randn(1, 1, 40)
        for sizes, strides in (((1, 1, 4, 8), (40, 40, 1, 1)), ((2, 1, 5, 8), (0, 40, 2, 1)), ((1, 3, 4, 8), (40, 1, 8, 1))):
            x = numbers.as_strided(sizes, strides)
            for own in (flashstep.rope, torch.compile(flashstep.rope, backend="aot_eager", fullgraph=True)):
                torch.testing.assert_close(own(x), rotated(x, torch.arange(sizes[2])))

    def test_linear_cross_entropy_of_columns(self):
        targets = torch.randint(0, 11, (6,))
        weight = torch.randn(11, 8)
        for columns in (torch.randn(8, 6).t(), torch.randn(1, 8, 6).transpose(1, 2)):
            ids = targets.view(columns.shape[:-1])
            x = columns.requires_grad_()
            exact = torch.autograd.grad(F.cross_entropy((x @ weight.T).flatten(0, -2), targets), x)
            for own in (
                flashstep.linear_cross_entropy,
                torch.compile(flashstep.linear_cross_entropy, backend="aot_eager", fullgraph=True),
            ):
                torch.testing.assert_close(torch.autograd.grad(own(x, weight, ids), x), exact)

    def test_attention_refuses_forward_mode(self):
        q = torch.randn(2, 4, 8)
        functions = [lambda x, name=name: flashstep.attention(x, x, x, implementation=name) for name in ("auto", "tiled")]
        functions.append(lambda x: flashstep.FlashAttention.apply(x, x, x))
        for function in functions:
            with self.assertRaisesRegex(Exception, "forward mode|forward AD"):
                torch.func.jvp(function, (q,), (torch.ones_like(q),))
        tangent = torch.func.jvp(
            lambda x: flashstep.attention(x, x, x, implementation="naive"), (q,), (torch.ones_like(q),)
        )[1]
        self.assertGreater(float(tangent.abs().sum()), 0)

    def test_flash_attention_of_nothing(self):
        for function in (flashstep.FlashAttention, flashstep.TiledFlashAttention):
            for batch, queries, keys in ((0, 5, 5), (2, 0, 5), (2, 5, 0)):
                for grad in (False, True):
                    q = torch.randn(batch, 3, queries, 16, requires_grad=grad)
                    k, v = (torch.randn(batch, 3, keys, 16, requires_grad=grad) for _ in range(2))
                    out = function.apply(q, k, v)
                    self.assertEqual(out.shape, q.shape)
                    self.assertEqual(float(out.detach().abs().sum()), 0)
                    if grad:
                        out.sum().backward()
                        self.assertEqual([float(x.grad.abs().sum()) for x in (q, k, v)], [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
