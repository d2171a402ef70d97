"""Attention and the fused operators from Python: values, gradients, autocast, torch.compile, errors."""

import unittest

import needs_torch  # noqa: F401
import torch
import torch.nn.functional as F
from torch.library import opcheck

import flashstep

torch.manual_seed(0)
DEVICE = torch.get_default_device().type  # a GPU in gpu_test


def reference(q, k, v, causal):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def rotated(x, positions, theta=10000.0):
    angles = positions.unsqueeze(-1) * theta ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def normed(x, weight, eps=1e-5):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def randn(*shape, grad=True):
    return torch.randn(*shape, requires_grad=grad)


# Each operator with inputs, and what it is compared with.
TARGETS, POSITIONS = torch.randint(0, 11, (3, 5)), torch.tensor([4, 9, 1, 0])
TARGETS[1, 2:4] = -100  # ignored
CASES = {
    "attention": (
        lambda q, k, v: flashstep.attention(q, k, v, causal=True),
        lambda q, k, v: reference(q, k, v, True)[0],
        lambda: (randn(2, 3, 9, 8), randn(2, 3, 9, 8), randn(2, 3, 9, 8)),
    ),
    "attention_lse": (
        lambda q, k, v: flashstep.attention(q, k, v, return_lse=True)[1],
        lambda q, k, v: reference(q, k, v, False)[1],
        lambda: (randn(2, 3, 9, 8), randn(2, 3, 7, 8), randn(2, 3, 7, 8)),
    ),
    "flash": (
        lambda q, k, v: flashstep.FlashAttention.apply(q, k, v, True),
        lambda q, k, v: reference(q, k, v, True)[0],
        lambda: (randn(2, 17, 16), randn(2, 17, 16), randn(2, 17, 16)),
    ),
    "flash_odd_dim": (
        lambda q, k, v: flashstep.FlashAttention.apply(q, k, v),
        lambda q, k, v: reference(q, k, v, False)[0],
        lambda: (randn(2, 3, 7), randn(2, 5, 7), randn(2, 5, 7)),
    ),
    "tiled": (
        lambda q, k, v: flashstep.TiledFlashAttention.apply(q, k, v, True),
        lambda q, k, v: reference(q, k, v, True)[0],
        lambda: (randn(2, 70, 8), randn(2, 70, 8), randn(2, 70, 8)),
    ),
    "rms_norm": (flashstep.rms_norm, normed, lambda: (randn(3, 5, 12), randn(12))),
    "swiglu": (flashstep.swiglu, lambda a, b: F.silu(a) * b, lambda: (randn(3, 7), randn(3, 7))),
    "rope": (flashstep.rope, lambda x: rotated(x, torch.arange(6)), lambda: (randn(2, 3, 6, 8),)),
    "rope_transposed": (
        lambda x: flashstep.rope(x.transpose(1, 2)),
        lambda x: rotated(x.transpose(1, 2), torch.arange(6)),
        lambda: (randn(2, 6, 3, 8),),
    ),
    "rope_three_dimensions": (
        lambda x: flashstep.rope(x, POSITIONS),
        lambda x: rotated(x, POSITIONS),
        lambda: (randn(5, 4, 6),),
    ),
    "rope_positions": (
        lambda x: flashstep.rope(x, torch.arange(8, device=x.device).view(2, 1, 4)),
        lambda x: rotated(x, torch.arange(8).view(2, 1, 4)),
        lambda: (randn(2, 3, 4, 6),),
    ),
    "cross_entropy": (
        lambda x: flashstep.cross_entropy(x, TARGETS),
        lambda x: F.cross_entropy(x.flatten(0, 1), TARGETS.flatten()),
        lambda: (randn(3, 5, 11),),
    ),
    "linear_cross_entropy": (
        lambda x, w: flashstep.linear_cross_entropy(x, w, TARGETS),
        lambda x, w: F.cross_entropy((x @ w.T).flatten(0, 1), TARGETS.flatten()),
        lambda: (randn(3, 5, 4), randn(11, 4)),
    ),
}


def with_gradients(function, inputs):
    out = function(*inputs)
    weights = torch.linspace(-1, 2, out.numel()).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs, materialize_grads=True)]


class Operators(unittest.TestCase):
    def assert_close(self, ours, theirs, name, tolerance=1e-5):
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")

    def test_values_and_gradients(self):
        for name, (ours, theirs, make) in CASES.items():
            inputs = make()
            self.assert_close(with_gradients(ours, inputs), with_gradients(theirs, inputs), name)

    def test_without_gradients(self):
        for name, (ours, theirs, make) in CASES.items():
            inputs = [x.detach() for x in make()]
            self.assert_close([ours(*inputs)], [theirs(*inputs)], name)
            with torch.no_grad():
                self.assertFalse(ours(*make()).requires_grad, name)

    def test_without_gradients_nothing_is_kept(self):
        for dim, autocast in ((16, False), (13, False), (16, True)):
            q = randn(2, 17, dim)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
                out = flashstep.FlashAttention.apply(q, q, q, True)
                with torch.no_grad():
                    plain = flashstep.FlashAttention.apply(q, q, q, True)
                self.assertIsNone(flashstep.FlashAttention.apply(q.detach(), q.detach(), q.detach()).grad_fn)
            self.assertIsNotNone(out.grad_fn)
            self.assertIsNone(plain.grad_fn)
            self.assertEqual(out.dtype, plain.dtype)
            self.assertTrue(torch.equal(out, plain), dim)

    def test_compiled_without_a_break(self):
        for name, (ours, _, make) in CASES.items():
            torch.compiler.reset()
            compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=False)
            inputs = make()
            self.assert_close(with_gradients(compiled, inputs), with_gradients(ours, inputs), name)

    def test_compiled_for_shapes_that_are_not_known(self):
        for name in ("attention", "flash", "rms_norm", "swiglu", "rope", "cross_entropy"):
            ours, _, make = CASES[name]
            torch.compiler.reset()
            compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=True)
            inputs = make()
            self.assert_close(with_gradients(compiled, inputs), with_gradients(ours, inputs), name)

    def test_compiled_under_autocast(self):
        for name in ("attention", "rms_norm", "linear_cross_entropy"):
            ours, _, make = CASES[name]

            def low(*inputs):
                with torch.autocast(DEVICE, torch.bfloat16):
                    return ours(*inputs)

            torch.compiler.reset()
            inputs = make()
            expected = with_gradients(low, inputs)
            found = with_gradients(torch.compile(low, fullgraph=True, backend="aot_eager"), inputs)
            self.assertEqual([x.dtype for x in found], [x.dtype for x in expected], name)
            self.assert_close(found, expected, name, 2e-2)

    def test_autocast_dtypes(self):
        q, weight = randn(2, 3, 8, 16), randn(16)
        with torch.autocast(DEVICE, torch.bfloat16):
            self.assertEqual(flashstep.attention(q, q, q).dtype, torch.bfloat16)
            self.assertEqual(flashstep.FlashAttention.apply(q, q, q).dtype, torch.bfloat16)
            self.assertEqual(flashstep.rms_norm(q, weight).dtype, torch.bfloat16)
            flashstep.FlashAttention.apply(q, q, q).float().sum().backward()
        self.assertEqual(q.grad.dtype, torch.float32)

    def test_opcheck(self):
        ops = torch.ops.flashstep
        q = randn(2, 3, 8, 16)
        opcheck(ops.attention.default, (q, q, q), {"causal": True})
        opcheck(ops.attention_forward.default, (q, q, q, 0.25, True, 0, False, DEVICE))
        opcheck(ops.rms_norm.default, (randn(3, 8), randn(8)))
        opcheck(ops.rms_norm_forward.default, (randn(3, 8), randn(8), 1e-5, torch.float32))
        opcheck(ops.swiglu.default, (randn(3, 8), randn(3, 8)))
        opcheck(ops.swiglu_forward.default, (randn(3, 8), randn(3, 8)))
        opcheck(ops.rope.default, (randn(2, 3, 4, 8),))
        opcheck(ops.rope_rows.default, (randn(2, 3, 4, 8), torch.rand(4, 4), torch.rand(4, 4), False))
        opcheck(ops.cross_entropy.default, (randn(3, 8), torch.tensor([1, 2, 3])))
        opcheck(ops.cross_entropy_forward.default, (randn(3, 8), torch.tensor([1, 2, 3]), True))

    def test_saved_tensors(self):
        for function in (flashstep.FlashAttention, flashstep.TiledFlashAttention):
            q, k, v = randn(4, 9, 16), randn(4, 5, 16), randn(4, 5, 16)
            out = function.apply(q, k, v)
            saved = out.grad_fn.saved_tensors
            self.assertEqual([x.shape for x in saved if x.shape == (4, 9)], [(4, 9)])
            torch.testing.assert_close(saved[-1], reference(q, k, v, False)[1])

    def test_gradients_of_any_strides(self):
        q = randn(2, 9, 16)
        out = flashstep.FlashAttention.apply(q, q, q)
        whole = torch.autograd.grad(out, q, torch.ones(1).expand(2, 9, 16), retain_graph=True)[0]
        torch.testing.assert_close(whole, torch.autograd.grad(out, q, torch.ones(2, 9, 16))[0])

    def test_clip_grad_norm(self):
        ours = [randn(3, 4), randn(5), randn(2)]
        theirs = [x.detach().clone().requires_grad_() for x in ours]
        for mine, other in zip(ours[:2], theirs[:2]):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        norm = flashstep.clip_grad_norm_([*ours, ours[0]], 0.5)
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(theirs, 0.5))
        torch.testing.assert_close([x.grad for x in ours[:2]], [x.grad for x in theirs[:2]])
        self.assertIsNone(ours[2].grad)

    def test_mistakes_are_sentences(self):
        q = randn(2, 3, 8, 16)
        for call, text in [
            (lambda: flashstep.attention(q, q[..., :8], q), r"\[attention\] expected k of shape .*got \[2, 3, 8, 8\]"),
            (
                lambda: flashstep.attention(q, q, q, implementation="fast"),
                r"expected implementation to be one of auto, naive",
            ),
            (lambda: flashstep.FlashAttention.apply(q, q.double(), q), r"expected k of dtype Float like q, got Double"),
            (lambda: flashstep.rms_norm(q, torch.ones(3)), r"\[rms_norm\] expected weight of shape \(16\), got \[3\]"),
            (lambda: flashstep.rope(randn(3, 5)), r"\[rope\] expected x of shape .* with D even"),
            (lambda: flashstep.rope(q, torch.arange(7)), r"\[rope\] expected integer positions that broadcast"),
            (lambda: flashstep.swiglu(q, q[0]), r"\[swiglu\] expected a and b of one shape"),
            (lambda: flashstep.clip_grad_norm_([q], 0.0), r"\[clip\] expected a largest norm above 0, got 0"),
        ]:
            with self.assertRaisesRegex(ValueError, text) as caught:
                call()
            self.assertNotIn("\n", str(caught.exception).strip())

    def test_second_derivatives_are_right_or_refused(self):
        def twice(function, inputs):
            first = torch.autograd.grad(function(*inputs).pow(2).sum(), inputs, create_graph=True)
            return torch.autograd.grad(sum(x.pow(2).sum() for x in first), inputs)

        for name, (ours, theirs, make) in CASES.items():
            inputs = make()
            if name.startswith("rope"):
                self.assert_close(twice(ours, inputs), twice(theirs, inputs), name, 1e-4)
                continue
            with self.assertRaisesRegex(ValueError, "second derivatives", msg=name):
                twice(ours, inputs)

    @unittest.skipUnless(DEVICE == "cpu", "a GPU does not read targets back")
    def test_targets_of_no_class(self):
        with self.assertRaisesRegex(ValueError, r"expected targets in \[0, 4\), got 4"):
            flashstep.cross_entropy(randn(2, 4), torch.tensor([0, 4]))


if __name__ == "__main__":
    unittest.main()
