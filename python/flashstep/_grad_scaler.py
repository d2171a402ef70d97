"""The scaling of float16's losses where gradients lie on several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import grad_scaler

from ._library import classes


class GradScaler(grad_scaler.GradScaler):
    """torch.amp.GradScaler for optimizers of a FullyShardedDataParallel's parameters: a step that one rank found an
    overflow for is skipped by all. (torch's own asks this rank's shards alone, so that one rank steps and another
    skips.) All ranks make the same calls. Of other optimizers it is torch's."""

    @torch.no_grad()
    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> dict[torch.device, Tensor]:
        found = super()._unscale_grads_(optimizer, *args, **kwargs)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not classes.ShardedUnits.divide(parameters):
            return found
        device = parameters[0].device
        found.setdefault(device, torch.zeros((), device=device))  # also of a rank that has no gradient
        own = torch.stack([value.reshape(()).to(device) for value in found.values()]).amax()
        on_any = classes.ShardedUnits.on_any_rank(own, parameters)
        for value in found.values():
            value.copy_(on_any)
        return found
