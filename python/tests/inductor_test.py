"""Models compiled to machine code by torch.compile: gradients, shapes that change, autocast, strided inputs."""

import unittest

import needs_torch  # noqa: F401
import torch

import flashstep

SIZES = {"vocab_size": 300, "context_length": 32, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 48}


def step(model, loss, tokens):
    model.zero_grad()
    value = loss(tokens, tokens)
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


class Inductor(unittest.TestCase):
    def test_a_model(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        compiled = torch.compile(model.loss, fullgraph=True)
        tokens = torch.randint(0, 300, (2, 32))
        for length in (32, 20, 27):  # the second is compiled for any length
            part = tokens[:, :length].contiguous()
            torch.testing.assert_close(step(model, compiled, part), step(model, model.loss, part), rtol=1e-4, atol=1e-6)
        with torch.autocast("cpu", torch.bfloat16):
            low = torch.compile(model.loss, fullgraph=True)(tokens, tokens)
            torch.testing.assert_close(low, model.loss(tokens, tokens), rtol=1e-2, atol=1e-2)

    def test_strided_inputs(self):
        def attend(qkv):
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            attended = flashstep.attention(flashstep.rope(q), flashstep.rope(k), v, causal=True)
            return attended.transpose(1, 2).flatten(2)

        qkv = torch.randn(2, 16, 3, 4, 8)
        torch.testing.assert_close(torch.compile(attend, fullgraph=True)(qkv), attend(qkv))


if __name__ == "__main__":
    unittest.main()
