"""Signals and limits: whatever ends a run, it is saved first and says so; what is no reason to end does not end it."""
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from array import array
from pathlib import Path

from program import write_tokens
from training_run import PROGRAM, command, expect_same, finish, outcome, whole_checkpoints, write_config

LONG = ["--set", "train.steps=1000000", "--set", "train.evaluate_every=0", "--set",
        "checkpointing.checkpointing_interval=0"]


class SignalsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.directory = Path(cls.temporary.name)
        cls.config = write_config(cls.directory)
        finish(command(cls.config, cls.directory / "reference", False))
        cls.reference = outcome(cls.directory / "reference")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def start(self, run, *arguments, launch=(), **options):
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, **options}
        arguments = [*command(self.config, self.directory / run, False), *arguments]
        process = subprocess.Popen([PROGRAM, *launch, *arguments[1:]], **options)
        self.addCleanup(process.kill)
        return process

    def wait_for_steps(self, run, steps=1):
        path = self.directory / run / "metrics.jsonl"
        deadline = time.time() + 60
        while not path.exists() or path.read_text().count("\n") <= steps:
            self.assertLess(time.time(), deadline, "waited too long")
            time.sleep(0.01)

    def ends_saved(self, process, run, number, word):
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 128 + number, stderr)
        self.assertIn(word, stderr.strip().splitlines()[-1], stderr)
        self.assertIn("all is saved", stderr.strip().splitlines()[-1], stderr)
        last = json.loads((self.directory / run / "metrics.jsonl").read_text().splitlines()[-1])
        self.assertEqual(whole_checkpoints(self.directory / run)[-1], f"step_{last['step']:08d}")
        return stderr

    def test_a_closed_terminal_and_the_limit_of_time_save_and_go_on(self):
        for number, word in ((signal.SIGHUP, "terminal was closed"), (signal.SIGXCPU, "limit of CPU time")):
            run = f"ended{number}"
            process = self.start(run, "--set", "train.evaluate_every=1", "--set", "train.steps=300")
            self.wait_for_steps(run)
            process.send_signal(number)
            process.send_signal(number)  # both come again by themselves
            stderr = self.ends_saved(process, run, number, word)
            # The last line is the command that goes on, as a shell takes it.
            told = shlex.split(stderr.strip().splitlines()[-1].split("; go on with: ")[1])
            self.assertEqual(told[-3:], ["--run", str(self.directory / run), "--resume"])
            self.assertIn("train.evaluate_every=1", told)
            finish(told)

    def test_resumed_after_a_hangup_as_never_stopped(self):
        process = self.start("hung")
        self.wait_for_steps("hung", 0)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (0, 129))
        finish(command(self.config, self.directory / "hung", True))
        expect_same(self.directory / "hung", self.reference)

    def test_nohup_stays_nohup(self):
        process = self.start("nohup", *LONG, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps("nohup")
        process.send_signal(signal.SIGHUP)
        self.wait_for_steps("nohup", (self.directory / "nohup/metrics.jsonl").read_text().count("\n") + 50)
        process.send_signal(signal.SIGTERM)
        self.ends_saved(process, "nohup", signal.SIGTERM, "SIGTERM")

    def test_a_terminal_that_is_closed_under_nohup(self):
        terminal, inside = os.openpty()
        process = self.start("closed", stdout=inside, stderr=inside,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        os.close(inside)
        self.wait_for_steps("closed", 0)
        os.close(terminal)
        self.assertEqual(process.wait(60), 0)
        expect_same(self.directory / "closed", self.reference)

    def test_a_limit_of_cpu_time(self):
        process = self.start("limited", *LONG, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (5, 60)))
        self.ends_saved(process, "limited", signal.SIGXCPU, "limit of CPU time")

    def test_nobody_reads(self):
        for streams in (["stderr"], ["stdout", "stderr"]):
            reading, writing = os.pipe()
            os.close(reading)
            run = "unread_" + "_".join(streams)
            process = self.start(run, **{"stderr": writing, "stdout": subprocess.DEVNULL,
                                         **dict.fromkeys(streams, writing)})
            os.close(writing)
            # Trained to the end; what a caller asked to be printed is not there.
            self.assertEqual(process.wait(60), 1 if "stdout" in streams else 0)
            expect_same(self.directory / run, self.reference)

    def test_a_limit_on_files_is_an_error(self):
        def small_files():  # Python ignores SIGXFSZ, but not in the processes that it starts
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))

        process = self.start("small", preexec_fn=small_files)
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 1, stderr)
        self.assertIn("File too large", stderr.strip().splitlines()[-1])
        told = subprocess.run([PROGRAM, "data", "stories", "--megabytes", "1", "--seed", "1", "--out",
                               str(self.directory / "stories.txt")], preexec_fn=small_files, capture_output=True, text=True)
        self.assertEqual(told.returncode, 1, told.stderr)
        self.assertIn("File too large", told.stderr.strip().splitlines()[-1])

    def test_ctrl_c_is_answered_at_once(self):
        process = self.start("asked", *LONG)
        self.wait_for_steps("asked")
        process.send_signal(signal.SIGINT)
        stderr = self.ends_saved(process, "asked", signal.SIGINT, "Ctrl-C")
        self.assertIn("[train] stopping: the step is finished and saved first", stderr)

    def test_timeout_asks_once(self):
        """timeout(1) signals its child and then the group that the child is in."""
        process = self.start("twice", *LONG)
        self.wait_for_steps("twice")
        process.send_signal(signal.SIGTERM)
        time.sleep(0.003)
        process.send_signal(signal.SIGTERM)
        self.ends_saved(process, "twice", signal.SIGTERM, "SIGTERM")
        for launch in ([], ["launch", "-n", "2", "--"]):
            run = f"timeout{len(launch)}"
            arguments = command(self.config, self.directory / run, False)[1:] + LONG
            limited = subprocess.Popen(["timeout", "8", PROGRAM, *launch, *arguments],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            stderr = limited.communicate(timeout=60)[1]
            self.assertEqual(limited.returncode, 124, stderr)
            self.assertIn("all is saved", stderr)
            self.assertEqual(len(os.listdir(self.directory / run / "checkpoints")), 1)

    def test_who_saves_nothing_says_what_stopped_it(self):
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        process = subprocess.Popen([PROGRAM, "train", str(pipe)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        while True:  # until it reads
            try:
                self.addCleanup(os.close, os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                break
            except OSError:
                self.assertIsNone(process.poll())
                time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual((process.returncode, stderr), (-signal.SIGINT, "flashstep: stopped by Ctrl-C\n"))

    def test_a_file_that_was_begun_is_removed(self):
        folder = self.directory / "decoded"
        folder.mkdir()
        text = str(self.directory / "text.txt")
        finish([PROGRAM, "tokenizer", "train", text, "--vocab-size", "256", "--out", str(self.directory / "bytes")])
        write_tokens(self.directory / "many.npy", array("H", [32]) * 40_000_000)
        process = subprocess.Popen([PROGRAM, "tokenizer", "decode", str(self.directory / "many.npy"), "--tokenizer",
                                    str(self.directory / "bytes"), "--out", str(folder / "text")],
                                   stderr=subprocess.PIPE, text=True)
        while not os.listdir(folder):
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual((process.returncode, os.listdir(folder)), (-signal.SIGINT, []), stderr)
        self.assertIn("stopped by Ctrl-C; what it was writing is removed", stderr)

    def test_a_text_that_somebody_cuts_short(self):
        folder, text = self.directory / "encoded", self.directory / "cut.txt"
        folder.mkdir()
        finish([PROGRAM, "tokenizer", "train", str(self.directory / "text.txt"), "--vocab-size", "256", "--out",
                str(self.directory / "cut_bytes")])
        for left in (1000, 299_999_500):  # pages are gone, or the last one ends in zeros
            with open(text, "wb") as file:
                for _ in range(300):
                    file.write(b"the cat sat. " * 76_923 + b"\n")
            process = subprocess.Popen([PROGRAM, "tokenizer", "encode", str(text), "--threads", "1", "--tokenizer",
                                        str(self.directory / "cut_bytes"), "--out", str(folder / "ids.npy")],
                                       stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            while str(text) not in Path(f"/proc/{process.pid}/maps").read_text():
                self.assertIsNone(process.poll())
            os.truncate(text, left)
            stderr = process.communicate(timeout=60)[1]
            self.assertIn(process.returncode, (1, -signal.SIGBUS), stderr)
            self.assertRegex(stderr.strip().splitlines()[-1], "cut (it )?short")
            self.assertEqual(os.listdir(folder), [])

    def test_launched_ranks(self):
        launch = ["launch", "-n", "2", "--"]
        process = self.start("ranks", *LONG, launch=launch)
        self.wait_for_steps("ranks")
        process.send_signal(signal.SIGHUP)
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 129, stderr)
        self.assertIn("all is saved", stderr)
        self.assertEqual(len(os.listdir(self.directory / "ranks/checkpoints")), 1)

    def test_launched_ranks_of_which_one_counts(self):
        """Rank 0 reads all tokens for the bigram model, the other one waits."""
        count, tokens = 100_000_000, self.directory / "many.npy"
        header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({count},), }}".ljust(117) + "\n"
        tokens.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        os.truncate(tokens, tokens.stat().st_size + 2 * count)
        process = self.start("counting", *LONG, "--set", f"tokens.train={tokens}", "--set",
                             f"tokens.validation={self.directory / 'data/validation.npy'}",
                             launch=["launch", "-n", "2", "--"])
        for line in process.stderr:
            if "bigram model" in line:
                break
        process.send_signal(signal.SIGTERM)
        self.ends_saved(process, "counting", signal.SIGTERM, "SIGTERM")
        self.assertFalse((self.directory / "counting/bigram.json").exists())

    def test_launched_ranks_under_nohup(self):
        process = self.start("nohup_ranks", *LONG, launch=["launch", "-n", "2", "--"],
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps("nohup_ranks")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 143, stderr)
        self.assertIn("all is saved", stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
