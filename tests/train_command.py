"""What tests of `flashstep train` as a user types it share."""
import json
import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
CONFIG = {
    "text": {"source": "stories.txt", "validation_fraction": 0.1, "directory": "data"},
    "tokenizer": {"vocab_size": 400, "threads": 1},
    "model": {"context_length": 32, "d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64},
    "schedule": {"learning_rate": 0.01, "min_learning_rate": 0.001, "warmup_steps": 3},
    "train": {"steps": 12, "batch_size": 4, "evaluate_every": 6, "evaluation_tokens": 2000, "threads": 1},
    "checkpointing": {"checkpointing_interval": 4},
    "sampling": {"prompts": ["Once"], "max_tokens": 10},
}


def flashstep(*arguments, **options):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def metrics(run):
    """metrics.jsonl without what depends on the clock."""
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        row.pop("tokens_per_s", None), row.pop("step_ms", None)
    return rows


def weights(run, step):
    path = os.path.join(run, "checkpoints", f"step_{step:08d}", "model.safetensors")
    with open(path, "rb") as file:
        return file.read()


def tensors(path):
    """A safetensors file: dtype and bytes by name."""
    content = Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


class TrainCommandTest(unittest.TestCase):
    """With a run "whole" of config.json in a directory of the class's own, which is the working directory."""

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        os.chdir(cls.directory.name)
        with open("config.json", "w") as file:
            json.dump(CONFIG, file)
        made = flashstep("data", "stories", "--megabytes", 1, "--seed", 3, "--out", "all.txt")
        assert made.returncode == 0, made.stderr
        with open("all.txt") as source, open("stories.txt", "w") as target:
            target.write(source.read(200_000))
        cls.first = flashstep("train", "config.json", "--run", "whole")
        assert cls.first.returncode == 0, cls.first.stderr

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        cls.directory.cleanup()

    def refused(self, words, *arguments, code=2, **options):
        result = flashstep(*arguments, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("flashstep: "), result.stderr)
        return result

    def start(self, *arguments):
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.kill)
        return process

    def wait_until(self, condition, seconds=60):
        deadline = time.time() + seconds
        while not condition():
            self.assertLess(time.time(), deadline, "waited too long")
            time.sleep(0.002)
