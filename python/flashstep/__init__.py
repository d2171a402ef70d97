"""flashstep: fast attention, data parallelism and sharded training for PyTorch.

Python holds names and glue; what computes or communicates is libflashstep.so, the library of the C++ API.
"""

from . import nn, profiling, report
from ._checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ._data import BatchSampler
from ._data_parallel import DistributedDataParallel
from ._fully_sharded import FullyShardedDataParallel
from ._grad_scaler import GradScaler
from ._library import __version__
from ._optim import AdamW, Muon, cosine_learning_rate
from ._operators import (
    FlashAttention,
    TiledFlashAttention,
    attention,
    attention_implementations,
    clip_grad_norm_,
    cross_entropy,
    document_spans,
    float8_linear,
    linear_cross_entropy,
    rms_norm,
    rope,
    swiglu,
)
from ._sharded_optimizer import ShardedOptimizer
from ._tokenizer import Tokenizer

__all__ = [
    "AdamW",
    "BatchSampler",
    "Checkpoint",
    "DistributedDataParallel",
    "FlashAttention",
    "FullyShardedDataParallel",
    "GradScaler",
    "Muon",
    "ShardedOptimizer",
    "TiledFlashAttention",
    "Tokenizer",
    "__version__",
    "attention",
    "attention_implementations",
    "clip_grad_norm_",
    "cosine_learning_rate",
    "cross_entropy",
    "document_spans",
    "float8_linear",
    "linear_cross_entropy",
    "load_checkpoint",
    "nn",
    "profiling",
    "report",
    "rms_norm",
    "rope",
    "save_checkpoint",
    "swiglu",
]
