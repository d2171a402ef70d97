"""Optimizers that the tests of shards divide."""

import torch

import flashstep


class CountsInItsGroups(torch.optim.Optimizer):
    """An optimizer of somebody's own: a step count in its groups, a number and None in its state."""

    updates_each_element_alone = True

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["calls"] = state.get("calls", 0) + 1
                state.setdefault("sum", torch.zeros_like(parameter)).add_(parameter.grad)
                parameter.sub_(state["sum"], alpha=group["lr"] / (group["count"] * state["calls"]))


class Factored(torch.optim.Optimizer):
    """State of other shapes than the parameter's, and one that is no tensor: for whole shards."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    rows = state.setdefault("rows", torch.zeros(parameter.shape[0]))
                    rows.add_(
                        parameter.grad.flatten(1).square().sum(-1) if parameter.dim() > 1 else parameter.grad.square()
                    )
                    state["text"] = "seen"
                    shape = (-1, *[1] * (parameter.dim() - 1))
                    parameter.sub_(parameter.grad / (rows.view(shape).sqrt() + 1), alpha=group["lr"])


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "AdamW amsgrad": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "plain SGD": (torch.optim.SGD, {"lr": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-2}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "own": (CountsInItsGroups, {}),
    "flashstep": (flashstep.AdamW, {"lr": 1e-2}),
}
