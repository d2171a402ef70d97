"""AdamW's state in the pieces that ranks of the program write is read as that of whole parameters."""

import glob
import json
import os
import subprocess
import tempfile
import unittest

import needs_torch  # noqa: F401
import torch

import flashstep
import ranks
from flashstep._library import operators

PROGRAM = os.environ.get("FLASHSTEP_PROGRAM", "")
SIZES = {"context_length": 16, "d_model": 36, "num_layers": 2, "num_heads": 3, "d_ff": 47}
DTYPES = {"F32": torch.float32, "I64": torch.int64}


def tensors_in(path):
    """Of a safetensors file, without the code that is tested."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    begin = 8 + int.from_bytes(content[:8], "little")
    for name, form in json.loads(content[8:begin]).items():
        if name != "__metadata__":
            first, last = form["data_offsets"]
            part = content[begin + first : begin + last]
            yield name, torch.frombuffer(part, dtype=DTYPES[form["dtype"]]).reshape(form["shape"])


def joined(checkpoint, parameters):
    """"NAME/KIND": the whole; and how many pieces there were."""
    pieces, whole = {}, {}
    for path in glob.glob(os.path.join(checkpoint, "optimizer*.safetensors")):
        for key, tensor in tensors_in(path):
            name, kind = key.rsplit("/", 1)
            name, _, elements = name.partition("@")
            pieces.setdefault(f"{name}/{kind}", {})[int(elements.split(":")[0] or 0)] = tensor
    for key, parts in pieces.items():
        shape = parameters[key.rsplit("/", 1)[0]].shape
        ordered = [parts[begin] for begin in sorted(parts)]
        is_step = key.endswith("/step")  # again with each piece
        whole[key] = ordered[0] if is_step else torch.cat([part.flatten() for part in ordered]).view(shape)
    return whole, sum(len(parts) - 1 for parts in pieces.values())


def of_rank(rank, world_size, checkpoint, vocab_size):
    """ShardedOptimizer reads its own elements of them."""
    model = flashstep.nn.TransformerLM(**SIZES, vocab_size=vocab_size, seed=9)
    whole, _ = joined(checkpoint, dict(model.named_parameters()))
    for shards in ("whole", "flat"):
        optimizer = flashstep.ShardedOptimizer(model.parameters(), torch.optim.AdamW, shards=shards)
        assert flashstep.load_checkpoint(checkpoint, model=model, optimizer=optimizer).step == 3
        optimizer.consolidate_state_dict()
        if rank == 0:
            same_state(optimizer.state_dict()["state"], model, whole)


def same_state(state, model, whole):
    for number, (name, _) in enumerate(model.named_parameters()):
        for kind in ("exp_avg", "exp_avg_sq", "step"):
            found, wanted = state[number][kind], whole[f"{name}/{kind}"]
            assert found.shape == wanted.shape and torch.equal(found.cpu(), wanted), (name, kind)


class Pieces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def train(self, mode):
        """The checkpoint of a run of two ranks, and the size of its vocabulary."""
        run, config = os.path.join(self.folder, mode), os.path.join(self.folder, "config.json")
        text = {"source": "stories", "stories_megabytes": 1, "directory": os.path.join(self.folder, "data")}
        with open(config, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "text": text,
                    "tokenizer": {"vocab_size": 300},
                    "model": SIZES,
                    "train": {"steps": 3, "batch_size": 2, "device": "cpu"},
                    "schedule": {"warmup_steps": 2},
                    "parallel": {"shard_optimizer": mode},
                },
                file,
            )
        done = subprocess.run(
            [PROGRAM, "launch", "-n", "2", "--", "train", config, "--run", run], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(run, "config.json"), encoding="utf-8") as file:
            return os.path.join(run, "checkpoints", "step_00000003"), json.load(file)["model"]["vocab_size"]

    @unittest.skipUnless(os.path.exists(PROGRAM), "the program is not built")
    def test_what_ranks_of_the_program_divided(self):
        for mode in ("flat", "full"):
            checkpoint, vocab_size = self.train(mode)
            model = flashstep.nn.TransformerLM(**SIZES, vocab_size=vocab_size, seed=9)
            whole, cuts = joined(checkpoint, dict(model.named_parameters()))
            self.assertGreater(cuts, 2, mode)
            for make in (torch.optim.AdamW, flashstep.AdamW):
                optimizer = make(model.parameters(), lr=1e-3)
                self.assertEqual(flashstep.load_checkpoint(checkpoint, model=model, optimizer=optimizer).step, 3)
                same_state(optimizer.state_dict()["state"], model, whole)
                model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
                optimizer.step()
            ranks.run(3, of_rank, checkpoint, vocab_size)

    def test_pieces_that_are_not_the_whole(self):
        net = torch.nn.Linear(4, 2, bias=False)
        path = os.path.join(self.folder, "checkpoint")
        for ends, text in (
            ([(0, 3), (4, 8)], "expected weight/exp_avg of element 3 of 8, got elements 4 to 8 next"),
            ([(0, 3)], "expected weight/exp_avg of 8 elements, got that of the first 3"),
            ([(0, 3), (2, 8)], "expected weight/exp_avg of element 3 of 8"),
        ):
            names = [f"weight@{begin}:{end}/exp_avg" for begin, end in ends]
            tensors = [torch.ones(end - begin) for begin, end in ends]
            operators.write_checkpoint(path, ["weight"], [net.weight.detach() + 1], names, tensors, 1, "{}")
            before = net.weight.detach().clone()
            with self.assertRaisesRegex(ValueError, text):
                flashstep.load_checkpoint(path, model=net, optimizer=torch.optim.AdamW(net.parameters()))
            self.assertTrue(torch.equal(net.weight, before))


if __name__ == "__main__":
    unittest.main()
