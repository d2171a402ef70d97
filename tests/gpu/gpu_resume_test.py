"""On a GPU: a run that is interrupted and resumed ends with the files of one that was never stopped, byte for byte."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
STEPS = 300
CONFIG = {
    "text": {"source": "stories.txt", "validation_fraction": 0.1, "directory": "data"},
    "tokenizer": {"vocab_size": 500},
    "model": {"context_length": 64, "d_model": 64, "num_layers": 2, "num_heads": 2, "d_ff": 128},
    "schedule": {"warmup_steps": 10},
    "train": {"steps": STEPS, "batch_size": 8, "device": "cuda", "evaluate_every": 100, "evaluation_tokens": 4096},
    "checkpointing": {"checkpointing_interval": 50},
    "sampling": {"prompts": ["Once"], "max_tokens": 10},
}


def train(run, precision, *arguments):
    return [PROGRAM, "train", "config.json", "--run", run, "--set", f"train.precision={precision}", *arguments]


def outcome(run):
    last = os.path.join(run, "checkpoints", f"step_{STEPS:08d}")
    files = {}
    for name in sorted(os.listdir(last)):
        with open(os.path.join(last, name), "rb") as file:
            files[name] = file.read()
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        files["metrics"] = [json.loads(line) for line in lines]
    for row in files["metrics"]:
        row.pop("tokens_per_s", None), row.pop("step_ms", None)
    return files


def interrupted(run, precision, after_step):
    """Starts a run and sends SIGINT when its metrics have reached a step."""
    process = subprocess.Popen(train(run, precision), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    path = os.path.join(run, "metrics.jsonl")
    while process.poll() is None:
        if os.path.exists(path):
            with open(path) as lines:
                if sum(1 for _ in lines) > after_step:
                    break
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 130, f"expected exit code 130, got {process.returncode}: {errors[-2000:]}"
    saved = sorted(os.listdir(os.path.join(run, "checkpoints")))[-1]
    assert saved != f"step_{STEPS:08d}", "the signal came too late"
    return saved


def main():
    info = json.loads(subprocess.run([PROGRAM, "info", "--json"], capture_output=True, text=True, check=True).stdout)
    if not info.get("gpus"):
        print("SKIPPED: no GPU that LibTorch can use")
        return 77
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        with open("config.json", "w") as file:
            json.dump(CONFIG, file)
        subprocess.run([PROGRAM, "data", "stories", "--megabytes", "1", "--seed", "3", "--out", "stories.txt"], check=True)
        for precision in ("fp32", "bf16", "fp16"):
            subprocess.run(train(f"whole_{precision}", precision), check=True)
            saved = interrupted(f"stopped_{precision}", precision, 70)
            subprocess.run(train(f"stopped_{precision}", precision, "--resume"), check=True)
            whole, stopped = outcome(f"whole_{precision}"), outcome(f"stopped_{precision}")
            for name, content in whole.items():
                assert stopped[name] == content, f"{precision}: {name} differs after a stop at {saved}"
            print(f"{precision}: stopped at {saved}, resumed, ended alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())
