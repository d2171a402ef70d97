"""CUDA graphs that a program captures around our operators and optimizers, and replays."""

import unittest

import needs_gpu
import torch

import flashstep

needs_gpu.need(1)
torch.set_default_device(needs_gpu.DEVICE)

SIZES = {"vocab_size": 500, "context_length": 64, "d_model": 128, "num_layers": 2, "num_heads": 2, "d_ff": 256}


def captured(work):
    """The graph of work(), and what it returns in the graph's memory."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


@unittest.skipUnless(needs_gpu.DEVICE == "cuda", "a GPU's")
class Graphs(unittest.TestCase):
    def test_a_captured_step(self):
        models = [flashstep.nn.TransformerLM(**SIZES, seed=3) for _ in range(2)]
        optimizers = [flashstep.AdamW(model.parameters(), lr=1e-2) for model in models]
        batches = [torch.randint(0, 500, (2, 64)) for _ in range(7)]
        place, losses = batches[0].clone(), []

        def one(which, tokens):
            model = models[which]
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                loss = model.loss(tokens, tokens.roll(1, -1))
            loss.backward()
            flashstep.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[which].step()
            optimizers[which].zero_grad(set_to_none=False)
            return loss.detach()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for tokens in batches[:3]:
                place.copy_(tokens)
                one(0, place)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = one(0, place)
        for tokens in batches[3:]:
            place.copy_(tokens)
            graph.replay()
            losses.append(loss.clone())
        expected = [one(1, tokens) for tokens in batches][3:]
        torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-4, atol=1e-5)
        for (name, mine), other in zip(models[0].named_parameters(), models[1].parameters()):
            self.assertLess(needs_gpu.relative_error(mine.detach(), other.detach()), 1e-3, name)

    def test_attention_alone(self):
        q = torch.randn(2, 3, 70, 64, dtype=torch.bfloat16, requires_grad=True)
        flashstep.attention(q, q, q, causal=True).sum().backward()  # before: kernels load
        q.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = flashstep.attention(q, q, q, causal=True)
            grad = torch.autograd.grad(out, q, torch.ones_like(out))[0]
        with torch.no_grad():
            q.copy_(torch.randn_like(q))
        graph.replay()
        again = flashstep.attention(q, q, q, causal=True)
        torch.testing.assert_close(out, again)
        self.assertLess(needs_gpu.relative_error(grad, torch.autograd.grad(again, q, torch.ones_like(out))[0]), 1e-2)

    def test_rope_of_longer_rows_afterwards(self):
        x = torch.randn(1, 2, 48, 24)
        expected = flashstep.rope(x)
        graph, out = captured(lambda: flashstep.rope(x))
        for length, before in ((200, 48), (900, 200)):
            flashstep.rope(torch.randn(1, 2, length, 24))
            filled = [torch.full((before * 12,), 7.0) for _ in range(8)]  # takes memory that was freed
            graph.replay()
            torch.testing.assert_close(out, expected)
            del filled

    def test_rope_of_rows_first_met_in_a_graph(self):
        x = torch.randn(1, 2, 50, 40)
        graph, out = captured(lambda: flashstep.rope(x))
        graph.replay()
        torch.testing.assert_close(out, flashstep.rope(x), rtol=1e-4, atol=1e-5)

    def test_a_rate_on_the_gpu_is_followed(self):
        ends = []
        for own, options in ((flashstep.AdamW, {}), (torch.optim.AdamW, {"capturable": True})):
            weight = torch.nn.Parameter(torch.ones(300))
            weight.grad = torch.linspace(-1, 1, 300)
            optimizer = own([weight], lr=torch.tensor(0.1), **options)
            optimizer.step()
            graph, _ = captured(optimizer.step)
            for rate in (0.05, 0.0, 0.2):
                optimizer.param_groups[0]["lr"].fill_(rate)
                graph.replay()
            ends.append(weight.detach())
        torch.testing.assert_close(*ends)


if __name__ == "__main__":
    unittest.main()
