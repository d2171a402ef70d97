"""Exit codes and files of all that measures, by what happens to it: one policy (benchmark.h), one table of commands."""
import os
import resource
import signal
import subprocess
import time
import unittest
from collections import namedtuple
from pathlib import Path

from program import PROGRAM, FolderTest, children_of, write_tokens

MODEL = ("--device", "cpu", "--vocab", 64, "--context", 16, "--batch", 2)
RANKS = (*MODEL, "--ranks", 2, "--precision", "fp32")
MOST = 1_000_000  # of what is repeated: long enough for what shall happen meanwhile
FULL_DISK = 512  # bytes that a file may have


# How a command is called: `words`, then what makes it short, or long, or makes it need 10^15 bytes; what a baseline that
# is not there is asked for with; whether other processes measure; and the pictures of the short call.
Command = namedtuple("Command", "words short long huge baseline children pictures", defaults=(None, None, False, ""))

STEPS = ("--turns", 1, "--warmup", 1)
NO_TRACE = ("--no-trace",)
HUGE_MODEL = "1048576/1048576/1000/64"
SMALL_MODEL = "32/64/2/2"
COMMANDS = {
    "norm": Command(("bench", "norm", "--device", "cpu"),
                    ("--rows", 50, "--width", 32, "--calls", 3, "--implementations", "flashstep,naive"),
                    ("--rows", 2000, "--width", ",".join(map(str, range(256, 756))), "--implementations", "naive"),
                    huge=("--rows", 99_000_000, "--width", 16_000_000, "--implementations", "flashstep,naive"),
                    baseline=("--rows", 50, "--width", 32, "--calls", 3, "--implementations", "flashstep,compiled"),
                    pictures="norm_fp32_forward norm_fp32_forward-backward"),
    "ops": Command(("bench", "ops", "--device", "cpu", "--width", 64),
                   ("--rows", 256, "--vocab", 100, "--seconds", 0.01, "--implementations", "flashstep,eager"),
                   ("--rows", 1 << 18, "--vocab", 100, "--implementations", "flashstep,eager"),
                   huge=("--rows", 1 << 24, "--vocab", 1 << 24, "--op", "cross_entropy", "--implementations", "flashstep"),
                   baseline=("--rows", 256, "--seconds", 0.01, "--op", "swiglu", "--implementations", "flashstep,compiled")),
    "attention": Command(("bench", "attention", "--device", "cpu", "--preset", "sweep", "--dtype", "fp32"),
                         ("--pairs", "32:16", "--warmup", 1, "--iterations", 2, "--implementations", "auto,naive"),
                         ("--pairs", *(f"64:{n}" for n in range(64, 400)), "--implementations", "naive"),
                         baseline=("--pairs", "32:16", "--warmup", 1, "--iterations", 2, "--implementations",
                                   "auto,compiled"),
                         pictures="sweep_heatmap_fp32_forward_b4h8_full sweep_scaling_fp32_forward_b4h8_full"),
    "allreduce": Command(("bench", "allreduce", "--device", "cpu", "--ranks", 2),
                         ("--megabytes", 0.01, "--seconds", 0.02), ("--megabytes", 0.01, "--seconds", MOST),
                         huge=("--megabytes", 100_000_000), children=True, pictures="allreduce_bus allreduce_time"),
    "ddp": Command(("bench", "ddp", *RANKS, *NO_TRACE, "--wrapper", "none,naive", "--check-steps", 0, *STEPS),
                   ("--model", SMALL_MODEL, "--steps", 1), ("--model", SMALL_MODEL, "--steps", 100_000),
                   huge=("--model", HUGE_MODEL, "--steps", 1), children=True,
                   pictures="ddp_32-64-2-2_2x2x16_fp32_parts"),
    "sharding": Command(("bench", "sharding", *RANKS, *NO_TRACE, "--shard", "none,flat", *STEPS),
                        ("--model", SMALL_MODEL, "--steps", 1), ("--model", SMALL_MODEL, "--steps", 100_000),
                        huge=("--model", HUGE_MODEL, "--steps", 1), children=True),
    "matrix": Command(("bench", "matrix", *RANKS, "--train", "TOKENS", "--val", "TOKENS", "--attention", "cpu",
                       "--wrapper", "none,naive"),
                      ("--model", SMALL_MODEL), ("--model", SMALL_MODEL, "--epochs", MOST),
                      huge=("--model", HUGE_MODEL), children=True,
                      pictures="matrix_time matrix_memory matrix_throughput matrix_speedup"),
    "step": Command(("bench", "step", *MODEL, "--warmup", 0),
                    ("--size", SMALL_MODEL, "--steps", 1), ("--size", SMALL_MODEL, "--steps", 100_000),
                    huge=("--size", HUGE_MODEL, "--steps", 1, "--no-reduced"),
                    baseline=("--size", SMALL_MODEL, "--steps", 1, "--peers", "eager"), children=True,
                    pictures="step_parts_b2_n16_fp32_auto"),
    "memory": Command(("memory", *MODEL), ("--size", SMALL_MODEL, "--mode", "step"),
                      ("--size", SMALL_MODEL, "--warmup", 100_000), huge=("--size", HUGE_MODEL, "--no-reduced"),
                      children=True),
    "precision": Command(("precision", "--device", "cpu", "--only", "sizes", "--context", 16, "--batch", 2),
                         ("--size", SMALL_MODEL, "--steps", 1), ("--size", SMALL_MODEL, "--steps", 100_000),
                         huge=("--size", HUGE_MODEL, "--steps", 1)),
    "profile": Command(("profile", *MODEL, "--attention", "cpu", "--no-inference", "--warmup", 0, "--recorded", 1),
                       ("--size", SMALL_MODEL, "--steps", 1), ("--size", SMALL_MODEL, "--steps", 100_000),
                       huge=("--size", HUGE_MODEL)),
    "tokenizer": Command(("bench", "tokenizer", "--megabytes", 1, "--encode-megabytes", 1, "--memory-megabytes", 0,
                          "--vocab-size", 300, "--threads", 1), ("--repeats", 1, "--peers", ""),
                         ("--repeats", MOST, "--peers", ""),
                         baseline=("--repeats", 1, "--python", "/no/such/python")),
}

# What a caller can do wrong, and a word of the sentence that says so. FILE is one, DAMAGED is neither a snapshot nor a
# trace, FOLDER is empty.
MISTAKES = """
account step --mode sideways: sideways
account step --size huge: huge
account attention --precision fp8: fp8
account mesh --x 0: mesh
account bounds --tokens 1.5: whole number
account ring --ranks 0: ranks
account rings: ring
account recompute --saved-mib -1: -1
account ring --out FILE/folder: [--out]
bench allreduce --preset 2023: 2023
bench allreduce --backend nccl --device cpu: NCCL knows no CPU
bench allreduce --device cpu --ranks 1: 1
bench allreduce --device cpu --megabytes 0.000001: an element
bench attention --device cpu --preset sweep --pairs 128x64: 128:64
bench attention --device cpu --preset sweep --pairs 0:64: 0:64
bench attention --device cpu --preset handout --n 100: filter
bench attention --device cpu --preset handout --pass sideways: sideways
bench attention --device tpu: tpu
bench attention --device cpu --preset handout --implementations nobody: nobody
bench attention --device cpu --preset handouts: handouts
bench norm --device cpu --preset 2025: preset
bench norm --device cpu --rows 0: rows
bench norm --device cpu --width wide: width
bench norm --device cpu --dtype fp8: dtype
bench norm --device cpu --width 64,64: 64
bench norm --device cpu --pass backward: pass
bench norm --device cpu --implementations apex: apex
bench norm --device cpu --calls 0: calls
bench tokenizer --peers FOLDER/none.py: none.py
bench norm --device cpu --out FILE: [--out]
bench ddp --device cpu --model huge: huge
bench ddp --device cpu --wrapper fsdp: fsdp
bench ddp --device cpu --preset 2023: 2023
bench sharding --device cpu --model 32/64/2/2 --shard quarter: quarter
bench sharding --device cpu --model 32/64/2/2 --bucket-mb -1: --bucket-mb
bench matrix --device cpu --model 32/64/2/2: --train
bench matrix --device cpu --model 32/64/2/2 --vocab 64 --context 16 --train no.npy --val no.npy: no.npy
bench step --device cpu --size huge: huge
bench step --device cpu --mode backward: backward
bench step --device cpu --warmup -1: --warmup
bench step --device cpu --warmup x: --warmup
bench step --device cpu --steps 0: --steps
bench step --device cpu --precision fp8: fp8
bench step --device cpu --precision tf32: tf32
bench step --device cpu --attention flash: flash
bench step --device cpu --context -5: --context
bench step --device cpu --batch 0: --batch
bench step --device cpu --size 32/64/2/2 --heads 5: 5
bench step --device cpu --preset 2023: 2023
bench step --device cpu --peers lazy: lazy
bench step --device cpu --out FILE: [--out]
memory --size huge: huge
memory --mode sideways: sideways
memory --warmup -1: --warmup
memory --precision fp8: fp8
memory --snapshot /nonexistent: /nonexistent
memory --size 33/64/2/2 --device cpu: 33
memory --snapshot DAMAGED: DAMAGED
memory --size 32/64/2/2 --device cpu --out /proc/nowhere: [--out]
precision --only everything: everything
precision --only sizes --device cpu --size huge: huge
precision --only sizes --device cpu --attention nobody: nobody
precision --steps 0: --steps
precision --only norms --out FILE/folder: [--out]
profile --trace DAMAGED: at byte
profile --trace FOLDER/missing.json: missing.json
profile --device cpu --size gigantic: gigantic
profile --device cpu --mode sideways: sideways
profile --device cpu --warmup -1: warmup
profile --device cpu --steps 0: steps
profile --device cpu --out /proc/nowhere: --out
report --preset 2023 --out FOLDER: 2023
report --only acount --out FOLDER: did you mean "account"
report --only account --out FILE/below: expected a directory that can be written
report --only account --out /proc/report: expected a directory that can be written
report --redraw --out FOLDER: expected results in
report --redraw --preset 2025 --out FOLDER: --preset
report --all-sections --out FOLDER: --redraw
report compare FOLDER FOLDER: expected results in
"""


def full_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK, FULL_DISK))


def measuring_child_of(pid):
    """A process below this one that has a task of its own, once it is flashstep itself, and has begun."""
    for child in children_of(pid):
        try:
            variables = Path(f"/proc/{child}/environ").read_bytes()
            program = os.readlink(f"/proc/{child}/exe")
            threads = len(list(Path(f"/proc/{child}/task").iterdir()))
        except OSError:
            continue
        if b"FLASHSTEP_BENCH_TASK=" in variables and b"\0RANK=" in variables and program == os.path.realpath(PROGRAM):
            if threads > 1:
                return child
        elif found := measuring_child_of(child):
            return found
    return None


def descendants_of(pid):
    return [one for child in children_of(pid) for one in (child, *descendants_of(child))]


class ExitCodesTest(FolderTest):
    def setUp(self):
        super().setUp()
        write_tokens(self.path / "tokens.npy", [i * i % 64 for i in range(16 * 40 + 1)])

    def call(self, *words):
        return [PROGRAM, *(str(self.path / "tokens.npy" if word == "TOKENS" else word) for word in words)]

    def run_to_end(self, *words, **options):
        return subprocess.run(self.call(*words), capture_output=True, text=True, timeout=240, **options)

    def start(self, *words):
        return subprocess.Popen(self.call(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def each(self, what, judge):
        """`judge` of every command that knows `what`."""
        for name, command in COMMANDS.items():
            if getattr(command, what):
                with self.subTest(name):
                    judge(name, command)

    def test_all_is_well_and_written(self):
        def judge(name, command):
            folder = self.path / name
            result = self.run_to_end(*command.words, *command.short, "--out", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            # The tokenizer's --out is the beginning of files' names, not a folder.
            files = [*folder.glob("*.md"), *self.path.glob(f"{name}*.md")]
            document = "".join(file.read_text() for file in files)
            self.assertTrue(document, files)
            for picture in command.pictures.split():
                self.assertIn(f"({picture}.svg)", document)
                self.assertTrue((folder / f"{picture}.svg").exists(), list(folder.iterdir()))

        self.each("short", judge)

    def test_memory_that_is_too_small_is_a_cell(self):
        def judge(name, command):
            result = self.run_to_end(*command.words, *command.huge)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("OOM", result.stdout)

        self.each("huge", judge)

    def test_a_baseline_that_is_not_there_is_a_cell(self):
        def judge(name, command):
            python = () if "--python" in command.baseline else ("--python", "/no/such/python")
            result = self.run_to_end(*command.words, *command.baseline, *python)
            self.assertEqual(result.returncode, 0, result.stderr)

        self.each("baseline", judge)

    def test_a_process_that_crashes_is_a_failure(self):
        def judge(name, command):
            process = self.start(*command.words, *command.long)
            deadline = time.monotonic() + 60
            while not (child := measuring_child_of(process.pid)) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertIsNotNone(child)
            # Whatever is measured after it, too: one that begins once more would not end.
            while process.poll() is None and time.monotonic() < deadline:
                if child := measuring_child_of(process.pid):
                    os.kill(child, signal.SIGSEGV)
                time.sleep(0.3)
            output, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1, errors)
            self.assertIn("failed", output)
            self.assertRegex(errors.strip().splitlines()[-1], r"^flashstep: \[.*SIGSEGV")

        self.each("children", judge)

    def test_interrupted(self):
        def judge(name, command):
            process = self.start(*command.words, *command.long)
            process.stderr.readline()  # it measures, and hears signals
            time.sleep(0.3)
            deadline = time.monotonic() + 60
            while command.children and not measuring_child_of(process.pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            measuring = descendants_of(process.pid)
            self.assertGreaterEqual(len(measuring), command.children)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)
            self.assertIn("interrupted; what was measured is shown", errors)
            self.assertIn("Interrupted: ", output)
            for child in measuring:
                with self.assertRaises(ProcessLookupError, msg=f"process {child} still runs"):
                    os.kill(child, 0)

        self.each("long", judge)

    def test_interrupted_before_anything_was_measured(self):
        norm, folder = COMMANDS["norm"], self.path / "norm"
        self.assertEqual(self.run_to_end(*norm.words, *norm.short, "--out", folder).returncode, 0)
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        process = self.start(*norm.words, "--rows", 50_000, "--width", 2048, "--implementations", "naive", "--out", folder)
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("Interrupted: ", output)
        self.assertEqual({file.name: file.read_bytes() for file in folder.iterdir()}, before)

    def test_where_all_is_refused_that_is_a_mistake(self):
        compiled = ("--implementations", "compiled", "--python", "/no/python")
        no_python = "[launch] cannot start /no/python: No such file or directory"
        lists = {("norm", "--device", "cpu", "--rows", 50, "--width", 32, *compiled): no_python,
                 ("ops", "--device", "cpu", "--rows", 256, "--width", 64, *compiled): no_python}
        if not Path("/dev/nvidiactl").exists():
            lists["allreduce", "--backend", "nccl"] = "[bench allreduce] nccl cuda 2 ranks 1 MB fp32: needs a GPU"
        for words, sentence in lists.items():
            with self.subTest(words):
                result = self.run_to_end("bench", *map(str, words))
                self.assertEqual(result.returncode, 2, (result.stdout, result.stderr))
                self.assertEqual(result.stderr.strip().splitlines()[-1], f"flashstep: {sentence}")

    def test_a_full_disk(self):
        def judge(name, command):
            # The caller's directory can be made; the first file that outgrows the limit cannot be written.
            result = self.run_to_end(*command.words, *command.short, "--out", self.path / name, preexec_fn=full_disk)
            self.assertEqual(result.returncode, 1, (result.stdout, result.stderr))
            self.assertIn("File too large", result.stderr.strip().splitlines()[-1])
            with open("/dev/full", "w") as full:
                result = subprocess.run(self.call(*command.words, *command.short), stdout=full, stderr=subprocess.PIPE,
                                        text=True, timeout=240)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("output could not be written", result.stderr)

        self.each("short", judge)

    def test_mistakes_are_one_sentence(self):
        places = {"FILE": self.path / "file", "DAMAGED": self.path / "DAMAGED.json", "FOLDER": self.path / "empty"}
        places["FILE"].write_text("")
        places["DAMAGED"].write_text('{"traceEvents": [{"ph": "X", "cat": "kernel"')
        for mistake in MISTAKES.strip().splitlines():
            line, word = mistake.rsplit(": ", 1)
            for name, place in places.items():
                line = line.replace(name, str(place))
            with self.subTest(mistake):
                result = self.run_to_end(*line.split())
                self.assertEqual(result.returncode, 2, (result.stdout, result.stderr))
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main()
