"""configs/tinystories.json as it is, end to end: downloaded from a local HTTP server, tokenizer, tokens, training, samples.

The two files are small stand-ins; only sizes are overridden.
"""
import functools
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading

PROGRAM, SOURCE = os.environ["FLASHSTEP_PROGRAM"], os.environ["FLASHSTEP_SOURCE"]
SMALL = {"tokenizer.vocab_size": 500, "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2,
         "model.num_layers": 2, "model.context_length": 64, "train.steps": 20, "train.batch_size": 4,
         "train.evaluation_tokens": 2000, "train.evaluate_every": 10, "schedule.warmup_steps": 2,
         "checkpointing.checkpointing_interval": 10, "sampling.max_tokens": 20, "train.device": "cpu"}


class Handler(http.server.SimpleHTTPRequestHandler):
    requests = []

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.requests.append(self.path)
        super().do_GET()


def flashstep(*arguments, **options):
    environment = {**os.environ, **options.pop("env", {}), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=200,
                          env=environment, **options)


def expect(condition, what, result=None):
    if not condition:
        sys.exit(f"FAILED: {what}\n{result.stdout[-2000:] if result else ''}{result.stderr if result else ''}")


def main():
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        os.mkdir("server")
        for part, seed in (("train", 1), ("valid", 2)):
            path = f"server/TinyStoriesV2-GPT4-{part}.txt"
            made = flashstep("data", "stories", "--megabytes", 1, "--seed", seed, "--out", path)
            expect(made.returncode == 0, "stories", made)
            os.truncate(path, 300_000 if part == "train" else 30_000)
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory="server"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = {"FLASHSTEP_TINYSTORIES_URL": f"http://127.0.0.1:{server.server_address[1]}"}

        command = ["train", os.path.join(SOURCE, "configs/tinystories.json"), "--run", "run"]
        for field, value in SMALL.items():
            command += ["--set", f"{field}={value}"]
        result = flashstep(*command, "--skip-data", env=url)
        expect(result.returncode == 2 and not Handler.requests, "--skip-data fetches nothing and refuses", result)

        result = flashstep(*command, env=url)
        expect(result.returncode == 0, "the pipeline runs", result)
        expect(len(Handler.requests) >= 2, "both files are fetched", result)
        rows = [json.loads(line) for line in open("run/metrics.jsonl")]
        expect(len(rows) == 21 and rows[-1]["val_loss"] < rows[0]["val_loss"], "it learns", result)
        for name in ("TinyStoriesV2-GPT4-train.txt", "tokenizer/vocab.json", "train.npy", "validation.npy"):
            expect(os.path.exists(f"data/tinystories/{name}"), name)
        expect("after step 20" in open("run/samples.txt").read(), "samples")

        server.shutdown(), server.server_close()  # from here on there is no network
        before = list(Handler.requests)
        result = flashstep(*command[:3], "again", *command[4:], "--skip-data", env=url)
        expect(result.returncode == 0 and Handler.requests == before, "a second run needs no network", result)
        manifests = [path for path in os.listdir("data/tinystories") if path.startswith("Tiny") and "manifest" in path]
        for path in manifests:
            os.remove(f"data/tinystories/{path}")
        result = flashstep(*command[:3], "third", *command[4:], "--skip-data", env=url)
        expect(result.returncode == 0, "what somebody copied is taken", result)
        expect(manifests and not any(os.path.exists(f"data/tinystories/{path}") for path in manifests),
               "--skip-data writes nothing beside texts")
        result = flashstep(*command[:3], "moved", *command[4:], "--set", "text.directory=elsewhere", env=url)
        expect(result.returncode == 1, "offline is the machine's failure", result)
        expect(result.stderr.strip().splitlines()[-1].startswith("flashstep: "), "one sentence", result)
    print("passed")


if __name__ == "__main__":
    main()
