"""flashstep.Muon beside torch.optim.Muon."""

import unittest

import flashstep
import torch


def matrices():
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((24, 24), (16, 48), (48, 16), (24, 24))]


def train(parameters, optimizer, begin, end):
    for step in range(begin, end):
        torch.manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
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
