"""Batches, the learning rate, AdamW and flashstep.nn."""

import copy
import math
import pickle
import unittest

import needs_torch  # noqa: F401
import torch

import flashstep
import nets

SIZES = {"vocab_size": 300, "context_length": 16, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 48}


class Batches(unittest.TestCase):
    def test_rows_are_windows_of_the_tokens(self):
        tokens = torch.arange(1000, 1100)
        for held in (tokens, tokens.to(torch.uint16), tokens.numpy(), tokens.numpy().astype("uint32")):
            sampler = flashstep.BatchSampler(held, batch_size=32, context_length=7, seed=3)
            inputs, targets = sampler.at(5, "cpu")
            self.assertEqual((inputs.shape, inputs.dtype), ((32, 7), torch.int64))
            self.assertTrue(torch.equal(targets, inputs + 1))
            self.assertTrue(torch.equal(inputs, sampler.at(5)[0]))
            self.assertFalse(torch.equal(inputs, sampler.at(6)[0]))

    def test_refuses_negative_ids(self):
        with self.assertRaisesRegex(ValueError, "token ids of at least 0, got -"):
            flashstep.BatchSampler(-torch.arange(50), batch_size=4, context_length=7).at(0)
        with self.assertRaisesRegex(ValueError, "got -100"):  # a target only
            flashstep.BatchSampler(torch.tensor([1, 2, -100]), batch_size=1, context_length=2).at(0)

    def test_copies(self):
        sampler = flashstep.BatchSampler(torch.arange(500), batch_size=4, context_length=3, seed=2, order="epoch")
        for same in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
            self.assertTrue(torch.equal(same.at(7)[0], sampler.at(7)[0]))

    def test_all_starts_are_drawn(self):
        sampler = flashstep.BatchSampler(torch.arange(100), batch_size=32, context_length=7)
        starts = torch.cat([sampler.at(step)[0][:, 0] for step in range(1000)])
        counts = starts.bincount()
        self.assertEqual((int(starts.min()), int(starts.max())), (0, 92))
        expected, deviation = 32000 / 93, math.sqrt(32000 / 93)
        self.assertTrue(all(abs(count - expected) < 5 * deviation for count in counts.tolist()))

    def test_ranks_have_their_rows(self):
        whole = flashstep.BatchSampler(torch.arange(500), batch_size=4, context_length=3).at(2)[0]
        parts = [
            flashstep.BatchSampler(torch.arange(500), batch_size=2, context_length=3, rank=rank, world_size=2).at(2)[0]
            for rank in (0, 1)
        ]
        self.assertTrue(torch.equal(torch.cat(parts), whole))

    def test_mistakes_are_sentences(self):
        for call, text in (
            (lambda: flashstep.BatchSampler(torch.arange(5), batch_size=1, context_length=5), "expected"),
            (lambda: flashstep.BatchSampler(torch.rand(9), batch_size=1, context_length=5), "whole numbers"),
            (lambda: flashstep.BatchSampler("/nonexistent.npy", batch_size=1, context_length=5), "nonexistent"),
            (lambda: flashstep.BatchSampler(torch.arange(9), batch_size=1, context_length=5, order="odd"), "odd"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                call()


class Optimizers(unittest.TestCase):
    def test_the_learning_rate(self):
        rates = [
            flashstep.cosine_learning_rate(
                step, learning_rate=1, min_learning_rate=0.1, warmup_steps=7, cosine_steps=21
            )
            for step in range(25)
        ]
        expected = [
            step / 7 if step < 7 else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 7) / 14)) if step <= 21 else 0.1
            for step in range(25)
        ]
        for rate, other in zip(rates, expected):
            self.assertAlmostEqual(rate, other, places=12)

    def test_adamw_is_torchs(self):
        for options in ({}, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}, {"amsgrad": True}):
            net, alone = nets.Net(), nets.Net()
            ours, theirs = flashstep.AdamW(net.parameters(), **options), torch.optim.AdamW(
                alone.parameters(), **options
            )
            nets.train(net, ours, 3, 4)
            nets.train(alone, theirs, 3, 4)
            for (name, one), other in zip(net.named_parameters(), alone.parameters()):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=lambda text: f"{name}: {text}")
            again = flashstep.AdamW(net.parameters(), **options)
            again.load_state_dict(theirs.state_dict())
            theirs.load_state_dict(ours.state_dict())
            nets.train(net, again, 2, 4, first=3)
            nets.train(alone, theirs, 2, 4, first=3)
            for one, other in zip(net.parameters(), alone.parameters()):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        with self.assertRaisesRegex(ValueError, "expected lr of at least 0, got -1"):
            flashstep.AdamW(net.parameters(), lr=-1)

    def test_adamw_in_float64_has_a_rate_in_float64(self):
        ends = []
        for own in (flashstep.AdamW, torch.optim.AdamW):
            weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
            optimizer = own([weight], lr=0.1)
            for _ in range(3):
                (weight * torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)).sum().backward()
                optimizer.step()
            ends.append(weight.detach())
        torch.testing.assert_close(*ends, rtol=0, atol=1e-14)

    def test_adamw_climbs_where_it_was_told_to(self):
        ends = []
        for own in (flashstep.AdamW, torch.optim.AdamW):
            weight = torch.nn.Parameter(torch.ones(3))
            optimizer = own([weight], lr=0.1)
            optimizer.load_state_dict(torch.optim.AdamW([weight], lr=0.1, maximize=True).state_dict())
            weight.square().sum().backward()
            optimizer.step()
            ends.append(weight.detach())
        torch.testing.assert_close(*ends)
        self.assertGreater(float(ends[0][0]), 1)

    def test_state_is_laid_out_as_the_parameter(self):
        ends = []
        for own in (flashstep.AdamW, torch.optim.AdamW):
            torch.manual_seed(1)
            net = torch.nn.Conv2d(3, 8, 3)
            optimizer = own(net.parameters(), lr=0.01, amsgrad=True)
            for step in range(4):
                if step == 2:  # as where a checkpoint was loaded, whose tensors are contiguous
                    net.to(memory_format=torch.channels_last)
                optimizer.zero_grad()
                net(torch.randn(2, 3, 8, 8)).sin().sum().backward()
                optimizer.step()
            ends.append(net.weight.detach())
        torch.testing.assert_close(*ends)

    def test_parameters_that_are_not_dense_are_refused(self):
        whole = torch.zeros(4, 6)
        part = torch.nn.Parameter(whole[:, :2])
        part.grad = torch.ones(4, 2)
        with self.assertRaisesRegex(ValueError, r"dense in memory, got Float of shape \[4, 2\]"):
            flashstep.AdamW([part]).step()
        self.assertEqual(float(whole.abs().sum()), 0)


class Modules(unittest.TestCase):
    def test_the_loss_is_that_of_the_logits(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        tokens = torch.randint(0, 300, (2, 16))
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        torch.testing.assert_close(model.loss(tokens, tokens), loss)
        self.assertAlmostEqual(float(loss.detach()), math.log(300), delta=0.6)
        with self.assertRaisesRegex(ValueError, "context_length = 16 tokens, got 17"):
            model(torch.zeros(1, 17, dtype=torch.int64))

    def test_grouped_queries_and_tied_weights(self):
        few = flashstep.nn.TransformerLM(**SIZES, num_kv_heads=1, tie_embeddings=True, seed=1)
        self.assertIs(few.lm_head.weight, few.token_embeddings.weight)
        self.assertAlmostEqual(
            float(few.lm_head.weight.detach().std()), (2 / (300 + SIZES["d_model"])) ** 0.5, delta=0.01
        )
        whole = flashstep.nn.TransformerLM(**SIZES, seed=2)
        heads = SIZES["num_heads"]
        state = {
            name: value.repeat(heads, 1) if name.endswith(("k_proj.weight", "v_proj.weight")) else value
            for name, value in few.state_dict().items()
        }
        whole.load_state_dict(state)
        tokens = torch.randint(0, 300, (2, 16))
        torch.testing.assert_close(few(tokens), whole(tokens))
        few.loss(tokens, tokens).backward()
        self.assertEqual(few.layers[0].attn.k_proj.weight.grad.shape, few.layers[0].attn.k_proj.weight.shape)
        with self.assertRaisesRegex(ValueError, "num_heads divisible by num_kv_heads, got 2 and 3"):
            flashstep.nn.CausalSelfAttention(16, 2, num_kv_heads=3)

    def test_positions(self):
        attention = flashstep.nn.CausalSelfAttention(16, 2)
        x = torch.randn(3, 5, 16)
        same = torch.arange(5).expand(3, 5)
        torch.testing.assert_close(attention(x, same), attention(x))
        torch.testing.assert_close(attention(x, torch.arange(5) + 7), attention(x))  # only distances count
        self.assertGreater(float((attention(x, torch.arange(5) * 2) - attention(x)).detach().abs().max()), 1e-4)

    def test_on_no_device(self):
        with torch.device("meta"):
            model = flashstep.nn.TransformerLM(**SIZES, seed=1)
        self.assertTrue(all(parameter.is_meta for parameter in model.parameters()))
        model.to_empty(device=torch.get_default_device())
        flashstep.nn.initialize(model, 1)
        same = flashstep.nn.TransformerLM(**SIZES, seed=1)
        for (name, mine), other in zip(model.named_parameters(), same.parameters()):
            self.assertTrue(torch.equal(mine, other), name)

    def test_passes_on_the_meta_device(self):
        with torch.device("meta"):
            model = flashstep.nn.TransformerLM(**SIZES)
            tokens = torch.zeros(2, 16, dtype=torch.int64)
        self.assertEqual((model(tokens).shape, model.loss(tokens, tokens).shape), ((2, 16, 300), ()))

    def test_evaluated_in_inference_mode_and_trained(self):
        model = flashstep.nn.TransformerLM(**{**SIZES, "context_length": 41, "d_model": 24})
        tokens = torch.randint(0, 300, (2, 41))  # so many positions were never asked for
        with torch.inference_mode():
            model(tokens)
        model.loss(tokens, tokens).backward()

    def test_positions_that_were_first_asked_for_in_a_transformation(self):
        x = torch.randn(2, 43, 6, dtype=torch.float64)
        first, again = (torch.func.grad(lambda x: flashstep.rope(x).sin().sum())(x) for _ in range(2))
        self.assertTrue(torch.equal(first, again))

    def test_the_norms_epsilon(self):
        model = flashstep.nn.TransformerLM(**SIZES, norm_epsilon=0.5)
        norms = [part.eps for part in model.modules() if isinstance(part, flashstep.nn.RMSNorm)]
        self.assertEqual(norms, [0.5] * 5)

    def test_seeds(self):
        one, same, other = (flashstep.nn.TransformerLM(**SIZES, seed=seed) for seed in (1, 1, 2))
        self.assertTrue(torch.equal(one.lm_head.weight, same.lm_head.weight))
        self.assertFalse(torch.equal(one.lm_head.weight, other.lm_head.weight))

    def test_compiled(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        tokens = torch.randint(0, 300, (2, 16))
        compiled = torch.compile(model.loss, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(tokens, tokens), model.loss(tokens, tokens))


if __name__ == "__main__":
    unittest.main()
