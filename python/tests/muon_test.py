"""flashstep.Muon beside torch.optim.Muon."""

import tempfile
import unittest

import needs_torch  # noqa: F401
import torch

import flashstep
from flashstep._library import operators


def matrices():
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((24, 24), (16, 48), (48, 16), (24, 24))]


def train(parameters, optimizer, begin, end):
    for step in range(begin, end):
        torch.manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()


class Muon(unittest.TestCase):
    # torch's iterates in bfloat16, also on a CPU.
    def assert_near(self, ours, theirs, starts):
        for one, other, start in zip(ours, theirs, starts):
            moved, expected = (one - start).detach(), (other - start).detach()
            self.assertLess(float((moved - expected).norm() / expected.norm()), 0.05)

    def test_is_torchs_with_updates_as_large_as_adamws(self):
        for options in ({}, {"lr": 0.02, "weight_decay": 0.5, "momentum": 0.8, "nesterov": False, "ns_steps": 4}):
            own, alone, starts = matrices(), matrices(), matrices()
            ours = flashstep.Muon(own, **options)
            theirs = torch.optim.Muon(alone, adjust_lr_fn="match_rms_adamw", **options)
            train(own, ours, 0, 3)
            train(alone, theirs, 0, 3)
            self.assert_near(own, alone, starts)
            saved = [optimizer.state_dict() for optimizer in (ours, theirs)]
            ours.load_state_dict(saved[1])
            theirs.load_state_dict(saved[0])
            train(own, ours, 3, 5)
            train(alone, theirs, 3, 5)
            self.assert_near(own, alone, starts)

    def test_state_is_laid_out_as_the_parameter(self):
        own = [torch.nn.Parameter(torch.randn(24, 16).t()), torch.nn.Parameter(torch.randn(8, 8))]
        alone = [torch.nn.Parameter(p.detach().contiguous()) for p in own]
        starts = [p.detach().clone() for p in own]
        ours, theirs = flashstep.Muon(own), torch.optim.Muon(alone, adjust_lr_fn="match_rms_adamw")
        train(alone, theirs, 0, 2)
        ours.load_state_dict(theirs.state_dict())  # contiguous
        for one, other in zip(own, alone):
            one.data.copy_(other.data)
        train(own, ours, 2, 4)
        train(alone, theirs, 2, 4)
        self.assert_near(own, alone, starts)

    def test_a_checkpoint_with_muons_groups_is_not_adamws(self):
        net = torch.nn.Linear(4, 4, bias=False)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/checkpoint"
            for make in (flashstep.Muon, torch.optim.Muon):
                optimizer = make(net.parameters())
                train(list(net.parameters()), optimizer, 0, 1)
                flashstep.save_checkpoint(path, model=net, optimizer=optimizer)
                flashstep.load_checkpoint(path, model=net, optimizer=flashstep.Muon(net.parameters()))
            # As the program writes it.
            state = [("weight/exp_avg", torch.ones(4, 4)), ("weight/step", torch.tensor(1.0))]
            names, values = zip(*state)
            operators.write_checkpoint(f"{folder}/2", ["weight"], [net.weight.detach()], names, values, 2, "{}")
            with self.assertRaisesRegex(ValueError, "expected AdamW's state in .*, got Muon's of some parameters"):
                flashstep.load_checkpoint(f"{folder}/2", model=net, optimizer=flashstep.AdamW(net.parameters()))

    def test_refuses_what_it_cannot_do(self):
        with self.assertRaisesRegex(ValueError, r"\[Muon\] expected matrices, got a parameter of shape \(3,\)"):
            flashstep.Muon([torch.nn.Parameter(torch.ones(3))])
        for options, sentence in (
            ({"lr": -1}, "expected lr of at least 0, got -1"),
            ({"momentum": 1}, r"expected momentum of a number in \[0, 1\), got 1"),
            ({"ns_steps": 0}, "expected ns_steps of at least 1, got 0"),
        ):
            with self.assertRaisesRegex(ValueError, sentence):
                flashstep.Muon(matrices(), **options)
        own = matrices()
        optimizer = flashstep.Muon(own)
        optimizer.load_state_dict(torch.optim.Muon(own).state_dict())
        with self.assertRaisesRegex(ValueError, "expected adjust_lr_fn of match_rms_adamw, got None"):
            train(own, optimizer, 0, 1)


if __name__ == "__main__":
    unittest.main()
