"""How the programs of this folder answer a request: a line of JSON on standard output."""
import json
import math

import torch


def say(answer):
    """JSON has no word for NaN and infinities: null stands for them."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in answer.items()}
    print(json.dumps(finite), flush=True)


def failure(error):
    """Of a case that could not be measured; the reader goes on with the next."""
    if isinstance(error, torch.OutOfMemoryError):
        return {"error": "out of memory"}
    words = str(error).strip().splitlines() or [""]
    return {"error": f"{type(error).__name__}: {words[0]}"}
