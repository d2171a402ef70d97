"""Which keys a query sees: windows and documents."""

import unittest

import needs_torch  # noqa: F401
import torch

import flashstep
from training_test import SIZES


class MasksTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_window(self):
        q, k, v = (torch.randn(2, 3, 20, 8, requires_grad=True) for _ in range(3))
        attend = lambda causal: flashstep.attention(q, k, v, causal=causal, window=6)
        compiled = torch.compile(attend, dynamic=True, backend="aot_eager")
        seen = torch.ones(20, 20, dtype=torch.bool).tril().triu(-5)
        ours, theirs = attend(True), torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(ours, compiled(True))
        for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (ours, theirs))):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        for call in (attend, compiled):
            with self.assertRaisesRegex(Exception, "at least 1 key, with causal, got 6 without causal"):
                call(False)
        model = flashstep.nn.TransformerLM(**SIZES, window=1, seed=1)  # each token by itself
        tokens = torch.randint(0, 300, (2, 16))
        torch.testing.assert_close(model(tokens)[:, 3:4], model(tokens[:, 3:4]))

    def test_one_compilation_for_a_growing_cache(self):
        attend = lambda q, k: flashstep.attention(q, k, k, causal=True, align_last=True, window=4)
        torch.compiler.reset()
        compiled = torch.compile(attend, dynamic=True, fullgraph=True, backend="aot_eager")
        with torch._dynamo.config.patch(recompile_limit=1):  # more would be an error
            for queries, keys in ((2, 5), (2, 9), (3, 12), (4, 7)):
                q, k = (torch.randn(1, 6, n, 8, requires_grad=True) for n in (queries, keys))
                ours, theirs = compiled(q, k), attend(q, k)
                torch.testing.assert_close(ours, theirs)
                for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, k)) for out in (ours, theirs))):
                    torch.testing.assert_close(a, b)

    def test_documents(self):
        q, k, v = (torch.randn(2, 3, 20, 8, requires_grad=True) for _ in range(3))
        ids = torch.tensor([[0] * 7 + [1] + [2] * 12, [5] * 20])
        same = ids.unsqueeze(1).unsqueeze(-1) == ids.unsqueeze(1).unsqueeze(-2)
        for causal in (False, True):
            attend = lambda ids: flashstep.attention(q, k, v, causal=causal, documents=flashstep.document_spans(ids))
            seen = same.tril() if causal else same
            ours, theirs = attend(ids), torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            torch.testing.assert_close(ours, theirs)
            part = lambda ids: flashstep.attention(q, k, v, causal=causal, documents=flashstep.document_spans(ids)[..., :20])
            wide = torch.cat([ids, ids[:, -1:]], -1)
            for dynamic in (False, True):
                compiled = [torch.compile(call, dynamic=dynamic, backend="aot_eager") for call in (attend, part)]
                torch.testing.assert_close(compiled[0](ids), ours)
                if causal:
                    torch.testing.assert_close(compiled[1](wide), ours)
            for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (ours, theirs))):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        with self.assertRaisesRegex(ValueError, r"expected documents \[2, 2, 20\] of Int"):
            flashstep.attention(q, k, v, documents=flashstep.document_spans(ids)[:, :1])

    def test_a_model_of_documents(self):
        model = flashstep.nn.TransformerLM(**SIZES, document_end=7, seed=1)
        tokens = torch.randint(8, 300, (2, 16))
        tokens[0, 5] = tokens[1, 9] = 7
        logits = model(tokens)
        torch.testing.assert_close(logits[:1, 6:], model(tokens[:1, 6:]))
        torch.testing.assert_close(logits[1:, 10:], model(tokens[1:, 10:]))
        torch.testing.assert_close(logits[1:, :10], model(tokens[1:, :10]))
        model.loss(tokens[:1], tokens[:1]).backward()
        together = model.lm_head.weight.grad
        model.lm_head.weight.grad = None
        for part in (tokens[:1, :6], tokens[:1, 6:]):  # a mean of 16 losses
            (model.loss(part, part) * part.numel() / 16).backward()
        torch.testing.assert_close(model.lm_head.weight.grad, together)


if __name__ == "__main__":
    unittest.main()
