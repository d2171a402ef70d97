"""What a caller gives save_checkpoint() to keep comes back as it was, or is refused."""

import os
import tempfile
import unittest

import needs_torch  # noqa: F401
import torch

import flashstep


class CheckpointState(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "checkpoint")

    def tearDown(self):
        self.folder.cleanup()

    def test_a_state_comes_back_as_it_was(self):
        net = torch.nn.Linear(2, 2)

        def make():
            optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
            return torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6]), optimizer

        scheduler, optimizer = make()
        for _ in range(2):
            optimizer.step()
            scheduler.step()
        state = {
            "scheduler": scheduler.state_dict(),
            "keys": {1: "a", 2.5: "b", None: "c", (1, "x"): "d", "1": "e"},
            "marks": [{"tuple": [1]}, {"dict": [[1, 2]]}, {"tensor": 1, "dtype": "float32"}, {}, ()],
            "more": (1, [2, (3,)], True, None, "text", "\u00e9\u2603"),
            "large": [2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, {2**70: 1}, {"int": "0x1"}],
        }
        flashstep.save_checkpoint(self.path, model=net, optimizer=optimizer, step=2, state=state)
        found = flashstep.load_checkpoint(self.path, model=net).state
        self.assertEqual(found, state)
        again, _ = make()
        again.load_state_dict(found["scheduler"])
        for _ in range(5):
            again.optimizer.step()
            again.step()
        self.assertAlmostEqual(again.get_last_lr()[0], 0.01)

    def test_what_json_does_not_hold_is_named(self):
        net = torch.nn.Linear(2, 2)
        for state, text in (
            ({"when": [object()]}, r"state\['when'\]\[0\] of type object"),
            ({(1, net): 2}, r"a key of state,\[1\] of type Linear"),
            ({"best": [{"loss": float("inf")}]}, r"state\['best'\]\[0\]\['loss'\] = inf"),
            ({"text": "\ud800"}, r"state\['text'\] = '.ud800'"),
        ):
            with self.assertRaisesRegex(ValueError, "JSON can hold, got " + text):
                flashstep.save_checkpoint(self.path, model=net, state=state)
        self.assertFalse(os.path.exists(self.path))


if __name__ == "__main__":
    unittest.main()
