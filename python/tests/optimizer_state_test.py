"""The state of a sharded optimizer, from whoever it comes: tensors stay tensors, and other values what they were."""

import datetime
import io
import os
import pickle
import tempfile
import unittest

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist

import flashstep
import nets
import ranks

FORMS = ("pickle", "int", "bool", "float")


class Touches:
    """What pickle makes of it leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Keeps(torch.optim.Optimizer):
    """Keeps what it is given with each parameter."""

    def __init__(self, params, kept):
        super().__init__(params, {})
        self.kept = kept

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].update(self.kept)


def make(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def runs_no_code(rank, world_size, folder):
    ran = os.path.join(folder, "ran")
    payload = torch.frombuffer(bytearray(pickle.dumps(Touches(ran))), dtype=torch.uint8)
    net = torch.nn.Linear(2, 3)
    alone = make(net)
    net(torch.ones(1, 2)).sum().backward()
    alone.step()
    for form in FORMS:
        alone.state[net.weight][f"x:{form}"] = payload.clone()
    path, file = os.path.join(folder, f"checkpoint_{world_size}_{rank}"), io.BytesIO()
    flashstep.save_checkpoint(path, model=net, optimizer=alone)
    torch.save(alone.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    for load in (
        lambda optimizer: optimizer.load_state_dict(state),
        lambda optimizer: flashstep.load_checkpoint(path, model=net, optimizer=optimizer),
    ):
        for shards in ("whole", "flat"):
            optimizer = flashstep.ShardedOptimizer(
                net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, shards=shards
            )
            load(optimizer)
            optimizer.consolidate_state_dict()
            assert not os.path.exists(ran), "a state ran code"
            if rank == 0:
                found = optimizer.state_dict()["state"][0]
                assert found.keys() == state["state"][0].keys(), found.keys()
                assert all(torch.equal(found[f"x:{form}"].to(torch.uint8), payload) for form in FORMS), found


def keeps_values(rank, world_size):
    kept = {
        "flag": True,
        "count": 2**70,
        "rate": float("inf"),
        "none": None,
        "factors": [torch.arange(3.0), (torch.ones(2, dtype=torch.bfloat16), {"rank": 3})],
        "tensor": torch.ones(2),
    }
    net = nets.Net()
    optimizer = flashstep.ShardedOptimizer(net.parameters(), Keeps, kept=kept)
    optimizer.step()
    for _ in range(2):
        optimizer.consolidate_state_dict()
        states = [optimizer.state_dict() if rank == 0 else None]
        if rank == 0:
            for kinds in states[0]["state"].values():
                assert kinds.keys() == kept.keys(), kinds
                for kind in ("flag", "count", "rate", "none"):
                    assert kinds[kind] == kept[kind] and type(kinds[kind]) is type(kept[kind]), kinds
                row, (ones, named) = kinds["factors"]
                assert torch.equal(row, kept["factors"][0]) and named == {"rank": 3}, kinds
                assert torch.equal(ones.float(), torch.ones(2)), kinds
        dist.broadcast_object_list(states)
        optimizer = flashstep.ShardedOptimizer(net.parameters(), Keeps, kept=kept)
        optimizer.load_state_dict(states[0])


def names_what_cannot_travel(rank, world_size):
    net = torch.nn.Linear(2, 2)
    optimizer = flashstep.ShardedOptimizer(net.parameters(), Keeps, kept={"when": datetime.date(2020, 1, 1)})
    optimizer.step()
    try:
        optimizer.consolidate_state_dict()
    except ValueError as error:
        assert rank == 0 and "with weights_only=True, got when of another class" in str(error), error
    else:
        assert rank == 1, "nothing was said"


class OptimizerState(unittest.TestCase):
    def test_a_state_runs_no_code(self):
        for world_size in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                ranks.run(world_size, runs_no_code, folder)

    def test_values_come_back_as_they_were(self):
        ranks.run(2, keeps_values)

    def test_what_cannot_travel_is_named(self):
        ranks.run(2, names_what_cannot_travel)


if __name__ == "__main__":
    unittest.main()
