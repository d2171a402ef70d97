"""flashstep: fast attention, data parallelism and sharded training for PyTorch.

Python holds names and glue; what computes or communicates is libflashstep.so, the library of the C++ API.
"""
from ._library import __version__  # first: it loads the library that the others call
from ._data_parallel import DistributedDataParallel
from ._optim import AdamW, cosine_learning_rate
from ._operators import (FlashAttention, TiledFlashAttention, attention, attention_implementations, clip_grad_norm_,
                         cross_entropy, linear_cross_entropy, rms_norm, rope, swiglu)
from ._sharded_optimizer import ShardedOptimizer

__all__ = [
    "AdamW", "DistributedDataParallel", "FlashAttention", "ShardedOptimizer", "TiledFlashAttention", "__version__", "attention", "attention_implementations",
    "clip_grad_norm_", "cosine_learning_rate", "cross_entropy", "linear_cross_entropy", "rms_norm", "rope", "swiglu",
]
