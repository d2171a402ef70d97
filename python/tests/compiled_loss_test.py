"""linear_cross_entropy under torch.compile: an operator that makes the gradients with the loss, by chunks of rows."""

import unittest

import needs_torch  # noqa: F401
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._pytree import tree_leaves

import flashstep
from operators_test import randn


class CompiledLoss(unittest.TestCase):
    def test_opcheck(self):
        for wants_x, wants_weight in ((True, True), (True, False), (False, False)):
            opcheck(
                torch.ops.flashstep.linear_cross_entropy_forward.default,
                (randn(2, 3, 8), randn(7, 8), torch.randint(0, 7, (2, 3)), torch.float32, wants_x, wants_weight),
            )

    def test_the_loss_by_chunks(self):
        """What linear_cross_entropy is under torch.compile on a GPU; these logits are two chunks."""
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            x, weight, targets = randn(50, 100, 4), randn(8000, 4), torch.randint(0, 8000, (50, 100))
            targets[7] = -100  # ignored
            loss, _, _ = torch.ops.flashstep.linear_cross_entropy_forward(x, weight, targets, dtype, True, True)
            found = [loss, *torch.autograd.grad(3 * loss, (x, weight))]
            exact = F.cross_entropy((x @ weight.T).flatten(0, 1), targets.flatten())
            for mine, other in zip(found, [exact, *torch.autograd.grad(3 * exact, (x, weight))], strict=True):
                torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)

    @unittest.skipUnless("cuda" in flashstep.attention_implementations(), "a build without CUDA kernels")
    def test_compiled_for_a_gpu_it_has_no_whole_logits(self):
        def loss(x, weight, targets):
            with torch.autocast("cuda", torch.bfloat16):
                return flashstep.linear_cross_entropy(x, weight, targets)

        with torch._subclasses.FakeTensorMode():
            x, weight = torch.empty(2, 50, 8, device="cuda"), torch.empty(999, 8, device="cuda")
            targets = torch.zeros(2, 50, dtype=torch.int64, device="cuda")
            graph = make_fx(loss)(x.requires_grad_(), weight.requires_grad_(), targets).graph
        made = [tensor for node in graph.nodes for tensor in tree_leaves(node.meta.get("val"))]
        shapes = {tuple(tensor.shape) for tensor in made if isinstance(tensor, torch.Tensor)}
        self.assertIn((2, 50, 8), shapes)
        self.assertFalse([shape for shape in shapes if shape[-1:] == (999,)], shapes)
        self.assertIn("linear_cross_entropy_forward", str(graph))


if __name__ == "__main__":
    unittest.main()
