"""AdamW, Muon and a learning rate, as the program has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ._library import operators


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """What a step's closure returns; it makes gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019, algorithm 2), all parameters of a group in a pass. Arguments that say what is
    computed, state and checkpoints are torch.optim.AdamW's: either loads what the other saved. An lr that is a tensor
    on the GPU is read there by each update, also in replays of a CUDA graph."""

    updates_each_element_alone = True  # for ShardedOptimizer's flat shards

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        for name, value, is_right, expected in (
            ("lr", lr, lr >= 0, "at least 0"),
            ("eps", eps, eps >= 0, "at least 0"),
            ("weight_decay", weight_decay, weight_decay >= 0, "at least 0"),
            ("betas", betas, len(betas) == 2 and all(0 <= beta < 1 for beta in betas), "two numbers in [0, 1)"),
        ):
            if not is_right:
                raise ValueError(f"[AdamW] expected {name} of {expected}, got {value}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "amsgrad": amsgrad, "maximize": maximize})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = loss_of(closure)
        for group in self.param_groups:
            with_gradient = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not with_gradient:
                continue
            states = [self._state_of(parameter, group["amsgrad"]) for parameter in with_gradient]
            gradients = [parameter.grad for parameter in with_gradient]
            if group.get("maximize", False):
                gradients = [-gradient for gradient in gradients]
            rate = group["lr"]
            operators.adamw_(
                with_gradient,
                gradients,
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
                [state["step"] for state in states],
                learning_rate=_as_tensor(rate),
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
            )
        return loss

    def _state_of(self, parameter: Tensor, amsgrad: bool) -> dict[str, Tensor]:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        if amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(parameter)
        _lay_beside(parameter, state, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
        return state


def _lay_beside(parameter: Tensor, state: dict[str, Tensor], kinds: Iterable[str]) -> None:
    """What was loaded, or is of before the parameter was laid anew."""
    for kind in kinds:
        if kind in state and state[kind].stride() != parameter.stride() and state[kind].shape == parameter.shape:
            state[kind] = torch.empty_like(parameter, dtype=state[kind].dtype).copy_(state[kind])
    if state["step"].device != parameter.device:  # torch's AdamW counts on the CPU
        state["step"] = state["step"].to(parameter.device)


def _as_tensor(rate: float | Tensor) -> Tensor:
    return rate if isinstance(rate, Tensor) else torch.tensor(rate, dtype=torch.float64, device="cpu")


# Options of torch.optim.Muon that have one value here.
MUON_CONSTANTS = {"ns_coefficients": (3.4445, -4.7750, 2.0315), "eps": 1e-7, "adjust_lr_fn": "match_rms_adamw"}


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024; Liu et al., 2025) of weight matrices inside of a network, not of embeddings and heads:
    torch.optim.Muon with adjust_lr_fn "match_rms_adamw", matrices of one shape together; either loads what the other
    saved. A CPU computes in float32 what torch computes in bfloat16. An lr that is a tensor on the GPU is read there
    by each update."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        for name, value, is_right, expected in (
            ("lr", lr, lr >= 0, "at least 0"),
            ("weight_decay", weight_decay, weight_decay >= 0, "at least 0"),
            ("momentum", momentum, 0 <= momentum < 1, "a number in [0, 1)"),
            ("ns_steps", ns_steps, ns_steps >= 1, "at least 1"),
        ):
            if not is_right:
                raise ValueError(f"[Muon] expected {name} of {expected}, got {value}")
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        super().__init__(params, {**defaults, "ns_steps": ns_steps, **MUON_CONSTANTS})
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if parameter.ndim != 2:
                raise ValueError(f"[Muon] expected matrices, got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = loss_of(closure)
        for group in self.param_groups:
            for name, value in MUON_CONSTANTS.items():  # of a state that torch's saved
                if group[name] != value:
                    raise ValueError(f"[Muon] expected {name} of {value}, got {group[name]}")
            with_gradient = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not with_gradient:
                continue
            states = [self._state_of(parameter) for parameter in with_gradient]
            operators.muon_(
                with_gradient,
                [parameter.grad for parameter in with_gradient],
                [state["momentum_buffer"] for state in states],
                [state["step"] for state in states],
                learning_rate=_as_tensor(group["lr"]),
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                nesterov=group["nesterov"],
                iterations=group["ns_steps"],
            )
        return loss

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        if "step" not in state:  # torch's has none
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        _lay_beside(parameter, state, ("momentum_buffer",))
        return state


def cosine_learning_rate(
    step: int, *, learning_rate: float, min_learning_rate: float, warmup_steps: int, cosine_steps: int
) -> float:
    """The rate of update `step`, which the program counts from 1 (batches from 0): step / warmup_steps of the highest
    before warmup_steps, so 0 at step 0, then half a cosine down to min_learning_rate at cosine_steps, and that from
    there on. cosine_steps 0: the highest after the warm-up."""
    return operators.cosine_learning_rate(
        step,
        learning_rate=learning_rate,
        min_learning_rate=min_learning_rate,
        warmup_steps=warmup_steps,
        cosine_steps=cosine_steps,
    )
