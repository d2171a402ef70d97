"""Checkpoints of models as people build them: compiled, with buffers that pass, with state of their own."""

import json
import os
import tempfile
import unittest
from unittest import mock

import needs_torch  # noqa: F401
import torch
from torch import nn

import flashstep
import nets
import ranks
from flashstep._library import operators


class Masked(nn.Module):
    """A buffer whose size follows from a setting, and that no state_dict has."""

    def __init__(self, length):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(length, length).tril().bool(), persistent=False)


class Counting(nn.Linear):
    def get_extra_state(self):
        return {"seen": 7}

    def set_extra_state(self, state):
        pass


def optimizer_of(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def compiled_inside(rank, world_size, folder):
    """Names are those of the module that is not compiled, in both directions."""
    path = os.path.join(folder, f"compiled_{rank}")
    net = nets.Net()
    model = flashstep.DistributedDataParallel(torch.compile(net, backend="aot_eager"))
    optimizer = optimizer_of(model)
    nets.train(model, optimizer, 2, 4, rank, world_size)
    flashstep.save_checkpoint(path, model=model, optimizer=optimizer, step=2)
    plain = nets.Net(seed=3)
    again = flashstep.DistributedDataParallel(torch.compile(nets.Net(seed=4), backend="aot_eager"))
    for module, other in ((plain, plain), (again, again.module._orig_mod)):
        loaded = optimizer_of(module)
        assert flashstep.load_checkpoint(path, model=module, optimizer=loaded).step == 2
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name]), name
        assert torch.equal(
            loaded.state_dict()["state"][0]["momentum_buffer"], optimizer.state_dict()["state"][0]["momentum_buffer"]
        )


def trained_from_now_on(rank, world_size, folder):
    """The buckets of more parameters have an order of their own."""
    path = os.path.join(folder, f"unfrozen_{rank}")
    for frozen in (True, False):
        net = nets.Net(seed=3 if frozen else 4)
        net.blocks[0].requires_grad_(not frozen)
        model = flashstep.DistributedDataParallel(net)
        if not frozen:
            assert flashstep.load_checkpoint(path, model=model).step == 1
        nets.train(model, optimizer_of(model), 0, 1, rank, world_size)
        if frozen:
            flashstep.save_checkpoint(path, model=model, step=1)


def names_in(path):
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [name for name in header if name != "__metadata__"]


class Models(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.path = folder.name, os.path.join(folder.name, "checkpoint")

    def test_buffers_that_are_not_kept(self):
        saved, longer = Masked(8), Masked(16)
        saved.norm.running_mean += 3
        flashstep.save_checkpoint(self.path, model=saved)
        self.assertEqual(sorted(names_in(self.path)), sorted(saved.state_dict()))
        flashstep.load_checkpoint(self.path, model=longer)
        self.assertTrue(torch.equal(longer.norm.running_mean, saved.norm.running_mean))
        self.assertEqual(longer.mask.shape, (16, 16))

    def test_earlier_versions_kept_them(self):
        saved, longer = Masked(8), Masked(16)
        saved.register_buffer("mask", saved.mask, persistent=True)
        flashstep.save_checkpoint(self.path, model=saved)
        self.assertIn("mask", names_in(self.path))
        flashstep.load_checkpoint(self.path, model=longer)
        self.assertEqual(longer.mask.shape, (16, 16))

    def test_earlier_versions_named_compiled_modules(self):
        saved, other = nn.ModuleDict({"_orig_mod": nets.Net()}), nets.Net(seed=3)
        with mock.patch("flashstep._checkpoint._plain", lambda name: name):
            flashstep.save_checkpoint(self.path, model=saved, optimizer=optimizer_of(saved))
        self.assertIn("_orig_mod.norm.weight", names_in(self.path))
        flashstep.load_checkpoint(self.path, model=other, optimizer=optimizer_of(other))
        self.assertTrue(torch.equal(other.norm.weight, saved["_orig_mod"].norm.weight))

    def test_compiled_modules(self):
        ranks.run(1, compiled_inside, self.folder)
        ranks.run(2, compiled_inside, self.folder)

    def test_parameters_that_are_trained_from_now_on(self):
        ranks.run(2, trained_from_now_on, self.folder)

    def test_without_the_optimizers_state(self):
        net = nets.Net()
        flashstep.save_checkpoint(self.path, model=net)
        with self.assertRaisesRegex(ValueError, "which was saved without one"):
            flashstep.load_checkpoint(self.path, model=net, optimizer=optimizer_of(net))
        with self.assertRaisesRegex(ValueError, "on the meta device"):
            flashstep.load_checkpoint(self.path, model=net.to("meta"))

    def test_shards_are_no_model(self):
        model = flashstep.FullyShardedDataParallel(nets.Net())
        with self.assertRaisesRegex(ValueError, "expected whole parameters.*got the module in a Fully"):
            flashstep.save_checkpoint(self.path, model=model.module)
        self.assertFalse(os.path.exists(self.path))

    def test_what_a_program_in_c_plus_plus_saves_is_read(self):
        """Its groups know the options of C++ alone, and other ranks' buffers lie among the optimizer's tensors."""
        net = torch.nn.Linear(2, 2)
        moments = [
            (f"{name}/{kind}", torch.ones_like(parameter))
            for name, parameter in net.named_parameters()
            for kind in ("exp_avg", "exp_avg_sq")
        ]
        kept = moments + [(f"{name}/step", torch.tensor(4.0)) for name, _ in net.named_parameters()]
        kept.append((".buffers/1/mean", torch.ones(3)))
        betas = {"tuple": [0.8, 0.9]}
        group = {"lr": 0.003, "betas": betas, "eps": 1e-6, "weight_decay": 0.25, "amsgrad": False}
        groups = [{**group, "params": [name for name, _ in net.named_parameters()]}]
        state = {"config": {}, "optimizer": {"class": "AdamW", "groups": groups, "numbers": {}}}
        names, tensors = zip(*((name, parameter.detach()) for name, parameter in net.named_parameters()))
        others, values = zip(*kept)
        operators.write_checkpoint(self.path, names, tensors, others, values, 4, json.dumps(state))
        for make in (torch.optim.AdamW, flashstep.AdamW):
            optimizer = make(net.parameters(), lr=0.1)
            self.assertEqual(flashstep.load_checkpoint(self.path, model=net, optimizer=optimizer).step, 4)
            found = optimizer.param_groups[0]
            self.assertEqual((found["lr"], found["betas"], found["weight_decay"]), (0.003, (0.8, 0.9), 0.25))
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            self.assertEqual(float(optimizer.state[net.weight]["step"]), 5)

    def test_floating_dtypes_are_converted_and_others_refused(self):
        net = nn.BatchNorm1d(4)
        flashstep.save_checkpoint(self.path, model=net)
        flashstep.load_checkpoint(self.path, model=nn.BatchNorm1d(4).double())
        net.num_batches_tracked = net.num_batches_tracked.to(torch.uint8)
        with self.assertRaisesRegex(ValueError, "expected num_batches_tracked of torch.uint8, got torch.int64 in"):
            flashstep.load_checkpoint(self.path, model=net)

    def test_state_of_their_own(self):
        with self.assertRaisesRegex(ValueError, r"without extra state.*got that of 0 \(get_extra_state\)"):
            flashstep.save_checkpoint(self.path, model=nn.Sequential(Counting(2, 2)))
        self.assertFalse(os.path.exists(self.path))


if __name__ == "__main__":
    unittest.main()
