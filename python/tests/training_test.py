"""Batches, the learning rate, AdamW, flashstep.nn and checkpoints, with the program in both directions."""
import json
import math
import os
import subprocess
import tempfile
import unittest

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist

import flashstep
import nets
import ranks

SIZES = {"vocab_size": 300, "context_length": 16, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 48}
PROGRAM = os.environ.get("FLASHSTEP_PROGRAM", "")


def program(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


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

    def test_all_starts_are_drawn(self):
        sampler = flashstep.BatchSampler(torch.arange(100), batch_size=32, context_length=7)
        starts = torch.cat([sampler.at(step)[0][:, 0] for step in range(1000)])
        counts = starts.bincount()
        self.assertEqual((int(starts.min()), int(starts.max())), (0, 92))
        expected, deviation = 32000 / 93, math.sqrt(32000 / 93)
        self.assertTrue(all(abs(count - expected) < 5 * deviation for count in counts.tolist()))

    def test_ranks_have_their_rows(self):
        whole = flashstep.BatchSampler(torch.arange(500), batch_size=4, context_length=3).at(2)[0]
        parts = [flashstep.BatchSampler(torch.arange(500), batch_size=2, context_length=3, rank=rank, world_size=2).at(2)[0] for rank in (0, 1)]
        self.assertTrue(torch.equal(torch.cat(parts), whole))

    def test_mistakes_are_sentences(self):
        for call, text in ((lambda: flashstep.BatchSampler(torch.arange(5), batch_size=1, context_length=5), "expected"),
                           (lambda: flashstep.BatchSampler(torch.rand(9), batch_size=1, context_length=5), "whole numbers"),
                           (lambda: flashstep.BatchSampler("/nonexistent.npy", batch_size=1, context_length=5), "nonexistent"),
                           (lambda: flashstep.BatchSampler(torch.arange(9), batch_size=1, context_length=5, order="odd"), "odd")):
            with self.assertRaisesRegex(ValueError, text):
                call()


class Optimizers(unittest.TestCase):
    def test_the_learning_rate(self):
        rates = [flashstep.cosine_learning_rate(step, learning_rate=1, min_learning_rate=0.1, warmup_steps=7, cosine_steps=21)
                 for step in range(25)]
        expected = [step / 7 if step < 7 else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 7) / 14)) if step <= 21 else 0.1 for step in range(25)]
        for rate, other in zip(rates, expected):
            self.assertAlmostEqual(rate, other, places=12)

    def test_adamw_is_torchs(self):
        for options in ({}, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}, {"amsgrad": True}):
            net, alone = nets.Net(), nets.Net()
            ours, theirs = flashstep.AdamW(net.parameters(), **options), torch.optim.AdamW(alone.parameters(), **options)
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


class Modules(unittest.TestCase):
    def test_the_loss_is_that_of_the_logits(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        tokens = torch.randint(0, 300, (2, 16))
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        torch.testing.assert_close(model.loss(tokens, tokens), loss)
        self.assertAlmostEqual(float(loss.detach()), math.log(300), delta=0.6)
        with self.assertRaisesRegex(ValueError, "context_length = 16 tokens, got 17"):
            model(torch.zeros(1, 17, dtype=torch.int64))

    def test_positions(self):
        attention = flashstep.nn.CausalSelfAttention(16, 2)
        x = torch.randn(3, 5, 16)
        same = torch.arange(5).expand(3, 5)
        torch.testing.assert_close(attention(x, same), attention(x))
        torch.testing.assert_close(attention(x, torch.arange(5) + 7), attention(x))  # only distances count
        self.assertGreater(float((attention(x, torch.arange(5) * 2) - attention(x)).detach().abs().max()), 1e-4)

    def test_seeds(self):
        one, same, other = (flashstep.nn.TransformerLM(**SIZES, seed=seed) for seed in (1, 1, 2))
        self.assertTrue(torch.equal(one.lm_head.weight, same.lm_head.weight))
        self.assertFalse(torch.equal(one.lm_head.weight, other.lm_head.weight))

    def test_compiled(self):
        model = flashstep.nn.TransformerLM(**SIZES)
        tokens = torch.randint(0, 300, (2, 16))
        compiled = torch.compile(model.loss, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(tokens, tokens), model.loss(tokens, tokens))


def saves_and_goes_on(rank, world_size, folder):
    path = os.path.join(folder, f"of_{world_size}")
    model = flashstep.DistributedDataParallel(nets.Net())
    optimizer = flashstep.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    nets.train(model, optimizer, 2, 4, rank, world_size)
    optimizer.consolidate_state_dict()
    if rank == 0:
        flashstep.save_checkpoint(path, model=model, optimizer=optimizer, step=2, state={"tokens": 7})
    dist.barrier()
    nets.train(model, optimizer, 2, 4, rank, world_size, first=2)
    other = flashstep.DistributedDataParallel(nets.Net(seed=5))
    again = flashstep.ShardedOptimizer(other.parameters(), torch.optim.AdamW, lr=5.0, shards="flat")
    found = flashstep.load_checkpoint(path, model=other, optimizer=again)
    assert (found.step, found.state) == (2, {"tokens": 7}), found
    nets.train(other, again, 2, 4, rank, world_size, first=2)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "checkpoint")

    def tearDown(self):
        self.folder.cleanup()

    def test_any_optimizer_goes_on(self):
        for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, betas=(0.5, 0.6)), flashstep.AdamW,
                     lambda p: torch.optim.RMSprop([{"params": list(p), "lr": 0.01}])):
            net, other = nets.Net(), nets.Net(seed=4)
            optimizer, again = make(net.parameters()), make(other.parameters())
            nets.train(net, optimizer, 2, 4)
            flashstep.save_checkpoint(self.path, model=net, optimizer=optimizer, step=2)
            self.assertEqual(flashstep.load_checkpoint(self.path, model=other, optimizer=again), flashstep.Checkpoint(2, {}))
            self.assertEqual([{**group, "params": 0} for group in again.param_groups], [{**group, "params": 0} for group in optimizer.param_groups])
            nets.train(net, optimizer, 2, 4, first=2)
            nets.train(other, again, 2, 4, first=2)
            for name, parameter in net.named_parameters():
                self.assertTrue(torch.equal(parameter, other.get_parameter(name)), name)
            self.assertTrue(torch.equal(net.counter, other.counter))
        self.assertEqual(os.listdir(self.folder.name), ["checkpoint"])

    def test_ranks(self):
        ranks.run(2, saves_and_goes_on, self.folder.name)

    def test_mistakes_are_sentences(self):
        net = nets.Net()
        flashstep.save_checkpoint(self.path, model=net, optimizer=flashstep.AdamW(net.parameters()))
        os.makedirs(os.path.join(self.folder.name, "own"))
        with open(os.path.join(self.folder.name, "own", "thesis.tex"), "w", encoding="utf-8") as file:
            file.write("mine")
        own = os.path.join(self.folder.name, "own")
        linear = torch.nn.Linear(2, 2)
        for call, text in (
                (lambda: flashstep.load_checkpoint(self.path, model=linear), "expected weight in"),
                (lambda: flashstep.load_checkpoint(self.path, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=1)), "got torch.optim.sgd.SGD"),
                (lambda: flashstep.load_checkpoint(self.path, model=net, optimizer=flashstep.AdamW(linear.parameters())), "another's"),
                (lambda: flashstep.load_checkpoint("/nonexistent", model=net), "nonexistent"),
                (lambda: flashstep.save_checkpoint(self.path, model=net, state={"when": object()}), "JSON"),
                (lambda: flashstep.save_checkpoint(own, model=net), "somebody else's files")):
            with self.assertRaisesRegex(ValueError, text):
                call()
        self.assertEqual(os.listdir(own), ["thesis.tex"])
        with open(os.path.join(self.path, "model.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        with self.assertRaisesRegex(ValueError, "the file is damaged"):
            flashstep.load_checkpoint(self.path, model=net)

    @unittest.skipUnless(os.path.exists(PROGRAM), "the program is not built")
    def test_the_program_reads_ours_and_we_its(self):
        run = os.path.join(self.folder.name, "run")
        text = os.path.join(self.folder.name, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write("Once upon a time there was a cat. " * 2000)
        config = os.path.join(self.folder.name, "config.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"name": "run", "out": run, "text": {"files": [text]}, "tokenizer": {"vocab_size": 300}, "model": {**SIZES, "vocab_size": 0},
                       "train": {"steps": 3, "batch_size": 2, "device": "cpu"}}, file)
        program("train", config)
        steps = os.path.join(run, "checkpoints", "step_00000003")
        with open(os.path.join(run, "config.json"), encoding="utf-8") as file:
            vocab_size = json.load(file)["model"]["vocab_size"]
        model = flashstep.nn.TransformerLM(**{**SIZES, "vocab_size": vocab_size}, seed=9)
        optimizer = flashstep.AdamW(model.parameters())
        self.assertEqual(flashstep.load_checkpoint(steps, model=model, optimizer=optimizer).step, 3)
        self.assertEqual(float(optimizer.state[model.lm_head.weight]["step"]), 3)
        before = program("generate", run, "--prompt", "Once", "--max-tokens", 8, "--temperature", 0)
        fresh = flashstep.nn.TransformerLM(**{**SIZES, "vocab_size": vocab_size}, seed=9)
        flashstep.save_checkpoint(steps, model=fresh, step=3)
        other = program("generate", run, "--prompt", "Once", "--max-tokens", 8, "--temperature", 0)
        flashstep.save_checkpoint(steps, model=model, step=3)
        self.assertEqual(program("generate", run, "--prompt", "Once", "--max-tokens", 8, "--temperature", 0), before)
        self.assertNotEqual(other, before)


if __name__ == "__main__":
    unittest.main()
