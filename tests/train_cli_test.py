"""The `train`, `generate`, `eval` and `export` commands as a user types them: files, exit codes, sentences, stopping and resuming."""
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
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


class TrainTest(unittest.TestCase):
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

    def test_plan_starts_and_writes_nothing(self):
        before = sorted(os.listdir("."))
        planned = flashstep("train", "config.json", "--plan", "--card", "H200", "--set", "train.precision=bf16")
        self.assertEqual(planned.returncode, 0, planned.stderr)
        self.assertEqual(sorted(os.listdir(".")), before)
        for words in ("Plan of a rank", "1 rank, H200, 139.8 GiB", "AdamW's moments", "Recommended: train.recompute none"):
            self.assertIn(words, planned.stdout)
        for level in ("none", "norms", "inner", "block"):
            self.assertRegex(planned.stdout, rf"(?m)^{level} .* yes +[\d.]+")
        here = flashstep("train", "config.json", "--plan", "--device", "cpu", "--memory", "1GiB", "--ranks", 3)
        self.assertEqual(here.returncode, 0, here.stderr)
        self.assertRegex(here.stdout, r"3 ranks, shard_optimizer none, the CPU, 1.0 GiB")
        self.assertRegex(here.stdout, r"(?m)^block .* yes +- ")
        self.refused(["a GPU with a data sheet, such as H200", "\"K80\""], "train", "config.json", "--plan", "--card", "K80")
        self.refused(["such as 141GiB or 80GB", "\"much\""], "train", "config.json", "--plan", "--memory", "much")
        self.refused(["1 to 1,048,576 ranks, got -1"], "train", "config.json", "--plan", "--ranks", -1)
        self.refused(["expected no card"], "train", "config.json", "--plan", "--device", "cpu", "--card", "H200")
        self.refused(["expected 2 processes (parallel.world_size), got 3"], "train", "config.json", "--plan", "--ranks", 3,
                     "--set", "parallel.world_size=2")
        self.refused(["expected --plan"], "train", "config.json", "--ranks", 3)

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

    def test_leaves_everything_in_the_run_directory(self):
        for name in ("config.json", "metrics.jsonl", "loss.svg", "samples.txt", "tokenizer/vocab.json", "tensorboard"):
            self.assertTrue(os.path.exists(f"whole/{name}"), name)
        plotted = flashstep("plot", "whole", "--out", "plotted")
        self.assertEqual(plotted.returncode, 0, plotted.stderr)
        if "no PNG" not in plotted.stdout:  # a build without the library that draws them says so
            with open("whole/loss.png", "rb") as picture:
                self.assertEqual(picture.read(8), b"\x89PNG\r\n\x1a\n")
        rows = metrics("whole")
        self.assertEqual([row["step"] for row in rows], list(range(13)))
        self.assertEqual([row["step"] for row in rows if "val_loss" in row], [0, 6, 12])
        self.assertLess(rows[12]["val_loss"], rows[0]["val_loss"])
        self.assertGreater(rows[0]["bigram_loss"], 1)
        self.assertEqual(sorted(os.listdir("whole/checkpoints")), ["step_00000008", "step_00000012"])
        with open("whole/config.json") as file:
            effective = json.load(file)
        self.assertEqual(effective["train"]["steps"], 12)
        self.assertEqual(effective["optimizer"]["beta1"], 0.9)  # a default
        self.assertIn("training", self.first.stderr)
        self.assertNotIn("\r", self.first.stderr)  # plain lines, no terminal

    def test_the_same_seed_gives_the_same_bits_and_data_is_made_once(self):
        before = os.stat("data/train.npy").st_mtime_ns
        self.assertEqual(flashstep("train", "config.json", "--run", "again").returncode, 0)
        self.assertEqual(os.stat("data/train.npy").st_mtime_ns, before)
        self.assertEqual(metrics("whole"), metrics("again"))
        self.assertEqual(weights("whole", 12), weights("again", 12))

    def test_interrupted_says_how_to_go_on_and_goes_on_bit_for_bit(self):
        for number, (code, settings) in enumerate({
            signal.SIGINT: [],
            signal.SIGTERM: ["--set", "train.order=epoch", "--set", "train.accumulation_steps=2",
                             "--set", "train.precision=bf16", "--set", "train.moments=bf16",
                             "--set", "train.stream=bf16"],
        }.items()):
            settings = [*settings, "--set", "train.steps=40", "--set", "train.evaluate_every=7"]
            self.assertEqual(flashstep("train", "config.json", "--run", f"straight{number}", *settings).returncode, 0)
            run = f"stopped{number}"
            process = subprocess.Popen([PROGRAM, "train", "config.json", "--run", run, *settings,
                                        "--set", "checkpointing.checkpointing_interval=5"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            deadline = time.time() + 60
            while not os.path.exists(f"{run}/checkpoints/step_00000005") and time.time() < deadline:
                time.sleep(0.005)
            process.send_signal(code)
            stderr = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 128 + code, stderr)
            self.assertIn(f"--run {run} --resume", stderr)
            resumed = flashstep("train", "config.json", "--run", run, *settings, "--resume")
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            self.assertEqual(metrics(f"straight{number}"), metrics(run))
            self.assertEqual(weights(f"straight{number}", 40), weights(run, 40))

    def test_resume_without_checkpoint_starts_anew_and_says_so(self):
        result = flashstep("train", "config.json", "--run", "anew", "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("starting anew", result.stderr)
        self.assertEqual(metrics("whole"), metrics("anew"))

    def test_default_run_directories_are_numbered(self):
        for name in ("runs/config", "runs/config-2"):
            self.assertEqual(flashstep("train", "config.json", "--set", "train.steps=3").returncode, 0)
            self.assertTrue(os.path.exists(f"{name}/metrics.jsonl"), name)

    def test_refusals(self):
        train = ("train", "config.json")
        self.refused(["whole", "resume it"], *train, "--run", "whole")
        self.refused(["train.stpes", "steps"], *train, "--set", "train.stpes=3")
        self.refused(["model.d_model", "32", "64"], *train, "--run", "whole", "--resume", "--set", "model.d_model=64")
        self.refused(["missing.json"], "train", "missing.json")
        self.refused(["nothing.txt"], *train, "--run", "r", "--set", "text.source=nothing.txt")
        self.refused(["wrapper", "none", "ddp"], *train, "--run", "r", "--wrapper", "ddp")
        self.refused(["attention"], *train, "--run", "r", "--attention", "nonsense")
        self.refused(["num_heads"], *train, "--run", "r", "--set", "model.num_heads=5")
        self.refused(["head"], *train, "--run", "r", "--set", "model.d_model=34")  # head_dim 17 is odd
        self.refused(["256"], *train, "--run", "r", "--set", "tokenizer.vocab_size=256")
        self.refused(["context"], *train, "--run", "r", "--set", "model.context_length=1000000")
        self.refused(["init"], *train, "--run", "r", "--set", "train.init_from=init.safetensors")
        open("empty.txt", "w").close()
        self.refused(["empty"], *train, "--run", "r", "--set", "text.source=empty.txt", "--set", "text.directory=e")
        self.refused(["runs/none"], "generate", "runs/none", "--prompt", "x")
        self.refused(["no.npy"], "eval", "whole", "no.npy")
        self.refused(["--prompt"], "generate", "whole")
        self.refused(["train.steps", "whole number"], *train, "--set", "train.steps=\udcff")
        self.refused(["--seed", "0"], "generate", "whole", "--prompt", "x", "--seed", "-1")
        self.refused(["--top", "0"], "data", "inspect", "data/train.npy", "--top", "-1")
        self.refused(["stores", "stories"], "data", "stores")

    def test_sentences_say_what_was_expected_and_what_came(self):
        for sentence, *arguments in (
                ("expected --device to be one of cpu, cuda, got tpu", "train", "config.json", "--device", "tpu"),
                ("expected config, got none", "train"),
                ("expected an option of train, got --resum; did you mean --resume?", "train", "config.json", "--resum"),
                ("expected an option of generate, got --promt; did you mean --prompt?", "generate", "whole", "--promt", "x"),
                ("expected an option of flashstep, got --hlep; did you mean --help?", "--hlep"),
                ("expected no further argument of train, got two.json", "train", "config.json", "two.json"),
                ("expected a command after data, one of stories, fetch, inspect; got none", "data"),
                ("expected --top to be a whole number from 0 to 4294967296, got -1", "data", "inspect", "f", "--top", "-1"),
                ("expected --top to be a whole number from 0 to 4294967296, got x", "data", "inspect", "f", "--top", "x"),
                ("expected --clip to be a number from 0 ", "bench", "step", "--clip", "-1"),
                ("expected a whole number from 1 to 1048576 after --batch, got nothing", "bench", "step", "--batch"),
                ("expected --precision to be one of fp32, fp32-split, tf32, bf16, got fp8", "bench", "step", "--precision", "fp8")):
            self.refused([f"flashstep: {sentence}"], *arguments)

    def test_skip_data_refuses_what_is_missing_or_disagrees(self):
        result = flashstep("train", "config.json", "--run", "skip", "--skip-data")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(metrics("whole"), metrics("skip"))
        other = ("--run", "r", "--skip-data")
        self.refused(["skip_data"], "train", "config.json", *other, "--set", "tokenizer.vocab_size=500")
        self.refused(["missing_data"], "train", "config.json", *other, "--set", "text.directory=missing_data")

    def test_a_tokenizer_that_changed_is_made_anew(self):
        train = ("train", "config.json", "--set", "text.directory=tampered")
        self.assertEqual(flashstep(*train, "--run", "untampered").returncode, 0)
        path = "tampered/tokenizer/tokenizer.json"
        made = Path(path).read_text()
        changed = json.loads(made)
        merges = changed["model"]["merges"]
        merges[0], merges[1] = merges[1], merges[0]
        for wrong in (json.dumps(changed), None):
            if wrong is None:
                os.remove(path)
            else:
                Path(path).write_text(wrong)
            self.refused(["skip_data", "tokenizer.json"], *train, "--run", "r", "--skip-data")
            mended = flashstep(*train, "--run", f"mended_{wrong is None}")
            self.assertEqual(mended.returncode, 0, mended.stderr)
            self.assertEqual(Path(path).read_text(), made)

    def test_token_files_of_others_are_checked(self):
        given = ["--set", "tokens.train=data/train.npy", "--set", "tokens.validation=data/validation.npy",
                 "--set", "tokenizer.path=data/tokenizer"]
        result = flashstep("train", "config.json", "--run", "given", *given)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(weights("whole", 12), weights("given", 12))
        self.refused(["below"], "train", "config.json", "--run", "r", *given, "--set", "model.vocab_size=300")

    def test_ids_beyond_the_vocabulary_are_named_where_they_are_read(self):
        tokens = Path("data/train.npy").read_bytes()
        wrong = tokens[:-400] + b"\x10\x27" * 200  # 10000, in the last 200 tokens
        Path("wrong.npy").write_bytes(wrong)
        given = {"train": "data/train.npy", "validation": "data/validation.npy"}
        for part, settings in (("validation", ["train.evaluation_tokens=0"]),
                               ("train", ["train.steps=1000000", "train.order=epoch", "train.evaluate_every=1000000",
                                          "checkpointing.checkpointing_interval=0"])):
            settings = [*settings, "tokens.check_ids=false", "tokenizer.path=data/tokenizer",
                        *(f"tokens.{name}={'wrong.npy' if name == part else path}" for name, path in given.items())]
            arguments = [word for setting in settings for word in ("--set", setting)]
            result = self.refused(["wrong.npy", "below the vocabulary's 400, got 10000 at position"], "train",
                                  "config.json", "--run", f"wrong_{part}", *arguments)
            position = int(result.stderr.split("at position ")[1].split()[0])
            self.assertGreaterEqual(position, (len(tokens) - 128) // 2 - 200)

    def test_resuming_on_other_tokens_is_refused(self):
        given = ["--set", "tokens.train=mine.npy", "--set", "tokens.validation=data/validation.npy",
                 "--set", "tokenizer.path=data/tokenizer"]
        shutil.copy("data/train.npy", "mine.npy")
        first = flashstep("train", "config.json", "--run", "changed", *given)
        self.assertEqual(first.returncode, 0, first.stderr)
        shutil.copy("data/validation.npy", "mine.npy")
        self.refused(["training data"], "train", "config.json", "--run", "changed", "--resume", *given)

    def test_one_process_per_directory(self):
        # No checkpoint before the last step: what the killed process leaves is begun again.
        settings = ("--set", "train.steps=100000", "--set", "checkpointing.checkpointing_interval=0")
        process = self.start("train", "config.json", "--run", "busy", *settings)
        self.wait_until(lambda: os.path.exists("busy/metrics.jsonl"))
        self.refused(["in use"], "train", "config.json", "--run", "busy", "--resume")
        process.kill()
        process.communicate()
        resumed = flashstep("train", "config.json", "--run", "busy", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual(metrics("whole"), metrics("busy"))

    def test_the_text_is_never_written_over(self):
        with open("stories.txt") as file:
            text = file.read()
        for name in ("train.txt", "validation.txt", "stories.txt"):
            os.makedirs("mine", exist_ok=True)
            shutil.copy("stories.txt", f"mine/{name}")
            settings = ("--run", "r", "--set", f"text.source=mine/{name}", "--set", "text.directory=mine")
            self.refused([f"mine/{name}"], "train", "config.json", *settings)
            with open(f"mine/{name}") as file:
                self.assertEqual(file.read(), text)
            os.remove(f"mine/{name}")
        shutil.copy("stories.txt", "mine/all.txt")
        for source, directory in (("mine", "mine"), ("mine", "mine/data"), (".", "data")):
            self.refused(["text.directory"], "train", "config.json", "--run", "r", "--set", f"text.source={source}",
                         "--set", f"text.directory={directory}")

    def test_runs_that_share_a_directory_wait_for_each_other(self):
        os.mkdir("shared")
        train = ("train", "config.json", "--set", "text.directory=shared", "--set")
        with open("shared/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            waiting = self.start(*train, "tokenizer.vocab_size=300", "--run", "shared300")
            self.assertIn("waiting for another run", waiting.stderr.readline())
            stopped = self.start(*train, "tokenizer.vocab_size=350", "--run", "shared350")
            self.assertIn("waiting for another run", stopped.stderr.readline())
            stopped.send_signal(signal.SIGINT)
            self.assertIn("goes on from here", stopped.communicate(timeout=60)[1])
            self.assertEqual(stopped.returncode, 130)
        at_once = [waiting] + [self.start(*train, f"tokenizer.vocab_size={size}", "--run", f"shared{size}")
                               for size in (310, 320)]
        for process in at_once:
            stderr = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, 0, stderr)
        for size in (300, 310, 320):  # each trained on tokens of its own tokenizer, to the end
            with open(f"shared{size}/tokenizer/vocab.json") as file:
                self.assertEqual(len(json.load(file)), size)
            self.assertEqual(metrics(f"shared{size}")[-1]["step"], 12)

    def test_stopped_while_data_are_prepared(self):
        with open("all.txt") as source, open("long.txt", "w") as target:
            for _ in range(100):
                target.write(source.read())
                source.seek(0)
        for code in (signal.SIGINT, signal.SIGTERM):
            process = self.start("train", "config.json", "--run", "early", "--set", "text.source=long.txt", "--set",
                                 f"text.directory=long{code}")
            self.wait_until(lambda: "long.txt" in Path(f"/proc/{process.pid}/maps").read_text())
            process.send_signal(code)
            stderr = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 128 + code, stderr)
            self.assertIn("goes on from here", stderr.splitlines()[-1])
            left = [name for name in os.listdir(f"long{code}") if ".tmp" in name or "unfinished" in name]
            self.assertEqual(left, [])

    def test_resuming_with_another_tokenizer_leaves_the_data_alone(self):
        before = os.stat("data/train.npy").st_mtime_ns, os.stat("data/tokenizer/vocab.json").st_mtime_ns
        self.refused(["tokenizer.vocab_size", "400", "500"], "train", "config.json", "--run", "whole", "--resume",
                     "--set", "tokenizer.vocab_size=500")
        after = os.stat("data/train.npy").st_mtime_ns, os.stat("data/tokenizer/vocab.json").st_mtime_ns
        self.assertEqual(before, after)

    def test_a_start_that_was_killed_early_binds_nobody(self):
        shutil.copytree("whole/tokenizer", "killed/tokenizer")  # all that is there before config.json,
        open("killed/lock", "w").close()  # and what says whose it is
        started = flashstep("train", "config.json", "--run", "killed", "--set", "tokenizer.vocab_size=300", "--set",
                            "text.directory=data300")
        self.assertEqual(started.returncode, 0, started.stderr)
        with open("killed/tokenizer/vocab.json") as file:
            self.assertEqual(len(json.load(file)), 300)

    def test_the_bigram_loss_is_counted_once_and_ids_are_checked_when_asked(self):
        self.assertEqual(flashstep("train", "config.json", "--run", "counted", "--set", "train.steps=4").returncode, 0)
        with open("counted/bigram.json") as file:
            kept = json.load(file)
        kept["loss"] = 1.25
        with open("counted/bigram.json", "w") as file:
            json.dump(kept, file)
        resumed = flashstep("train", "config.json", "--run", "counted", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertNotIn("bigram model", resumed.stderr)
        self.assertEqual(metrics("counted")[12]["bigram_loss"], 1.25)
        unchecked = flashstep("train", "config.json", "--run", "unchecked", "--set", "tokens.check_ids=false")
        self.assertEqual(unchecked.returncode, 0, unchecked.stderr)
        self.assertNotIn("bigram_loss", metrics("unchecked")[12])

    def test_samples_end_where_documents_end(self):
        texts = []
        for name, end in (("endless", "no such token"), ("ends", "e")):  # one of the commonest tokens
            shutil.copytree("whole", name)
            with open(f"{name}/config.json") as file:
                config = json.load(file)
            config["text"]["document_end"] = end
            with open(f"{name}/config.json", "w") as file:
                json.dump(config, file)
            done = flashstep("generate", name, "--prompt", "Once", "--max-tokens", 300, "--temperature", 1)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts.append(done.stdout.rstrip("\n"))
        whole, ended = texts
        self.assertTrue(whole.startswith(ended), ended)
        self.assertLess(len(ended), len(whole))

    def test_what_cannot_be_printed_is_a_failure(self):
        for arguments in (["generate", "whole", "--prompt", "Once"], ["eval", "whole", "data/validation.npy"], ["--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("No space left", done.stderr.splitlines()[-1])

    def test_out_of_memory_is_one_sentence(self):
        def little_memory():
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))

        result = self.refused(["out of memory"], "train", "config.json", "--run", "huge", "--set",
                              "model.vocab_size=2147483648", code=1, preexec_fn=little_memory)
        self.assertNotIn("frame #", result.stderr)

    def test_a_full_disk_leaves_the_checkpoint_before(self):
        self.assertEqual(flashstep("train", "config.json", "--run", "full", "--set", "train.steps=4").returncode, 0)
        kept = weights("full", 4)

        def no_space():  # writes beyond the limit fail as on a full disk, with another error number
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) // 2, resource.RLIM_INFINITY))

        self.refused(["model.safetensors"], "train", "config.json", "--run", "full", "--resume", code=1,
                     preexec_fn=no_space)
        self.assertEqual(os.listdir("full/checkpoints"), ["step_00000004"])
        self.assertEqual(weights("full", 4), kept)
        self.assertEqual(flashstep("train", "config.json", "--run", "full", "--resume").returncode, 0)

    def test_weights_start_another_run(self):
        result = flashstep("train", "config.json", "--run", "second", "--set", "train.init_from=whole")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(metrics("second")[0]["val_loss"], metrics("whole")[12]["val_loss"])

    def test_recomputed_blocks_train_with_the_same_bits(self):
        for precision in ("fp32", "bf16"):
            trained = []
            for number, recompute in enumerate(("none", "block", "block")):
                run = f"recompute_{precision}_{number}"
                result = flashstep("train", "config.json", "--run", run, "--set", f"train.precision={precision}",
                                   "--set", "model.num_layers=3", "--set", f"train.recompute={recompute}",
                                   "--set", f"train.recompute_group={max(number, 1)}")
                self.assertEqual(result.returncode, 0, result.stderr)
                trained.append(weights(run, 12))
            self.assertEqual(trained[0], trained[1], precision)
            self.assertEqual(trained[0], trained[2], precision)

    def test_generate_and_eval(self):
        arguments = ("generate", "whole", "--prompt", "Once", "--max-tokens", 20, "--temperature", 1)
        one, same = flashstep(*arguments, "--seed", 5), flashstep(*arguments, "--seed", 5)
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertTrue(one.stdout.startswith("Once"))
        self.assertEqual(one.stdout, same.stdout)
        self.assertNotEqual(one.stdout, flashstep(*arguments, "--seed", 6).stdout)
        greedy = ("generate", "whole", "--prompt", "Once", "--temperature", 0, "--max-tokens", 5)
        self.assertEqual(flashstep(*greedy, "--seed", 1).stdout, flashstep(*greedy, "--seed", 2).stdout)
        evaluated = flashstep("eval", "whole", "data/validation.npy")
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        values = {line.split()[0]: float(line.split()[1].replace(",", "")) for line in evaluated.stdout.splitlines()}
        self.assertAlmostEqual(values["perplexity"], 2.718281828 ** values["loss"], delta=1e-2)
        self.assertAlmostEqual(values["loss"], metrics("whole")[12]["val_loss"], delta=0.3)

    def test_export(self):
        exported = flashstep("export", "whole", "--out", "weights.safetensors")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        step = Path("whole/checkpoints/step_00000012")
        self.assertEqual(tensors("weights.safetensors"), tensors(step / "model.safetensors"))
        half = flashstep("export", step, "--out", "half.safetensors", "--dtype", "bf16")
        self.assertEqual(half.returncode, 0, half.stderr)
        self.assertEqual({dtype for dtype, _ in tensors("half.safetensors").values()}, {"BF16"})
        self.refused(["expected a .safetensors file, a checkpoint or a run with one", "nowhere"],
                     "export", "nowhere", "--out", "never.safetensors")
        self.assertFalse(Path("never.safetensors").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
