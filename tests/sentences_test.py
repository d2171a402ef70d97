"""What the program says: of a run before it begins, and of mistakes that can be made outside of a config."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from training_run import PROGRAM, write_config


def flashstep(*arguments, **options):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def read_only(directory, *arguments):
    """Runs the program where `directory` is on a file system that cannot be written, whoever runs it."""
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    return subprocess.run(["unshare", "--mount", "sh", "-c", script, directory, PROGRAM, *map(str, arguments)],
                          capture_output=True, text=True, timeout=120)


def can_mount():
    with tempfile.TemporaryDirectory() as directory:
        return read_only(directory, "--version").returncode == 0


class SentencesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, "/")
        os.chdir(directory.name)
        write_config(Path("."), train={"steps": 4}, schedule={"warmup_steps": 1})

    def says(self, code, words, *arguments, run=flashstep):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("flashstep: "), result.stderr)
        for word in words:
            self.assertIn(word, last)

    def done(self, *arguments, run=flashstep):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_a_pipe_is_no_text(self):
        os.mkfifo("pipe")
        for arguments in (["tokenizer", "train", "pipe", "--vocab-size", 300, "--out", "tokenizer"],
                          ["data", "inspect", "pipe"],
                          ["train", "config.json", "--run", "piped", "--set", "text.source=pipe"]):
            self.says(2, ["expected a regular file", "pipe"], *arguments)

    def test_help_is_a_command_too(self):
        for command in ([], ["bench", "step"]):
            self.assertEqual(self.done("help", *command).stdout, self.done(*command, "--help").stdout)
        for mistake in (("nonsense",), ("bench", "nonsense"), ("train", "config.json")):
            self.says(2, [f"expected a command, such as train or bench step, got {mistake[-1]}"], "help", *mistake)

    def test_lost_output_has_its_reason(self):
        for arguments in (["--help"], ["train", "--help"], ["account", "all"], ["completion", "bash"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual((result.returncode, result.stderr), (
                1, "flashstep: the output could not be written: No space left on device\n"), arguments)

    def test_a_plan_for_no_ranks(self):
        self.says(2, ["--ranks"], "train", "config.json", "--plan", "--ranks", 0)

    def test_three_lines_before_a_run(self):
        result = self.done("train", "config.json", "--run", "run", "--set", "train.threads=99",
                           "--set", "tokenizer.vocab_size=9000", "--set", "model.vocab_size=9000")
        self.assertNotIn("{", result.stdout)
        for line in (r"\[data\] [\d,]+ tokens to train on, [\d,]+ held out, from text.txt, kept in data",
                     r"\[model\] 306,592 parameters: 2 layers, d_model 32, .*vocabulary 9,000",
                     r"\[machine\] .*fp32 on cpu, 99 threads",
                     r"\[machine\] more threads \(train.threads 99\) than processors",
                     r"\[tokenizer\] \d+ tokens of the 9,000 asked for"):
            self.assertRegex(result.stderr, rf"(?m)^{line}")
        result = self.done("train", "config.json", "--run", "told", "--verbose")
        printed = result.stdout[:result.stdout.index("run directory:")]
        self.assertEqual(json.loads(printed)["train"]["steps"], 4)

    def test_all_that_a_model_lacks_at_once(self):
        Path("few.json").write_text('{"text": {"source": "text.txt"}, "model": {"context_length": 32}}')
        self.says(2, ["d_model 0", "d_ff 0", "num_layers 0", "num_heads 0"], "train", "few.json")

    def test_names_that_lead_nowhere(self):
        os.symlink("loop", "loop")
        self.says(2, ["got \"\", an empty name"], "train", "config.json", "--set", "text.source=")
        self.says(2, ["loop", "symbolic links"], "train", "config.json", "--set", "text.source=loop")
        self.says(2, ["loop", "symbolic links"], "train", "config.json", "--run", "loop")

    def test_a_launch_inside_of_a_launch(self):
        self.says(2, ["one launch around all ranks"], "launch", "-n", "1", "--", "launch", "-n", "1", "--", "info")

    def test_a_link_is_written_through(self):
        Path("real").mkdir()
        Path("real/old.txt").write_text("old")
        for name, target in (("link.txt", "real/old.txt"), ("dangling.txt", "real/new.txt")):
            os.symlink(target, name)
            self.done("data", "stories", "--megabytes", "1", "--seed", "1", "--out", name)
            self.assertTrue(os.path.islink(name))
            self.assertGreater(os.path.getsize(target), 900_000)
        self.assertEqual(sorted(os.listdir("real")), ["new.txt", "old.txt"])  # nothing unfinished beside them

    def test_a_run_of_the_library_has_no_model_to_build(self):
        Path("run").mkdir()
        Path("run/config.json").write_text("{}")
        self.says(2, ["the library trained"], "generate", "run", "--prompt", "x")

    def test_a_tokenizer_has_a_place_before_it_is_trained(self):
        Path("file").write_text("")
        self.says(2, ["file"], "tokenizer", "train", "missing.txt", "--vocab-size", "300", "--out", "file")
        self.says(2, ["file"], "tokenizer", "train", "missing.txt", "--vocab-size", "300", "--out", "file/below")

    def test_what_a_tokenizer_does_not_replace(self):
        Path("text").write_text("a text of some words, some of them twice\n")
        train = ["tokenizer", "train", "text", "--vocab-size", "0260", "--out"]
        special = ["--special-token", "[INST]", "--special-token", "[a,b]"]
        for _ in range(2):  # it replaces its own
            self.assertEqual(flashstep(*train, "made", *special).returncode, 0)
        tokens = json.loads(Path("made/tokenizer.json").read_text())["added_tokens"]
        self.assertEqual([token["content"] for token in tokens], ["[INST]", "[a,b]"])
        Path("made/config.json").write_text('{"train": {"steps": 5}}')  # of no model
        self.assertEqual(flashstep(*train, "made", *special).returncode, 0)
        Path("made/config.json").write_text('{"model_type": "llama"}')
        self.says(2, ["the model of its config.json"], *train, "made")
        os.mkdir("another")
        Path("another/tokenizer.json").write_text("{}")
        self.says(2, ["with one to replace", "another"], *train, "another")
        self.assertEqual(Path("another/tokenizer.json").read_text(), "{}")
        os.rename("text", "[x]")
        self.says(2, ['got "[y]"'], *train, "one", "[x]", "--pattern", "[y]")
        encode = ["tokenizer", "encode", "[x]", "--tokenizer", "made", "--out"]
        self.assertEqual(flashstep(*encode, "ids.npy").returncode, 0)
        self.assertEqual(flashstep(*encode, "ids.npy").returncode, 0)
        os.chmod("ids.npy", 0o444)
        self.says(2, ["ids.npy", "read-only"], *encode, "ids.npy")
        Path("other.npy").write_bytes(Path("ids.npy").read_bytes().replace(b"<u2", b"<f2"))
        self.says(2, ["a token file (.npy) to replace", "another kind of file"], *encode, "other.npy")

    def test_tokens_are_read_by_the_tokenizer_that_made_them(self):
        self.done("train", "config.json", "--run", "run")
        self.done("tokenizer", "train", "text.txt", "--vocab-size", "257", "--out", "other")
        self.done("tokenizer", "encode", "text.txt", "--tokenizer", "other", "--out", "ids.npy")
        for arguments in (("eval", "run", "ids.npy"), ("tokenizer", "decode", "ids.npy", "--tokenizer", "run/tokenizer")):
            self.says(2, ["ids.npy", "tokens of this tokenizer", "another one"], *arguments)
        self.done("tokenizer", "decode", "ids.npy", "--tokenizer", "other", "--out", "again.txt")
        self.assertEqual(Path("again.txt").read_bytes(), Path("text.txt").read_bytes())
        self.done("tokenizer", "encode", "text.txt", "--tokenizer", "run/tokenizer", "--out", "ids.npy")
        self.done("eval", "run", "ids.npy")
        Path("mine.npy.manifest.json").write_text("mine")
        self.says(2, ["mine.npy.manifest.json", "expected a manifest"], "tokenizer", "encode", "text.txt",
                  "--tokenizer", "other", "--out", "mine.npy")
        self.assertEqual(Path("mine.npy.manifest.json").read_text(), "mine")

    def test_held_out_tokens_that_are_trained_on_are_named(self):
        note = "the held-out tokens are those to train on"
        same = self.done("train", "config.json", "--run", "same", "--set", "text.validation=text.txt")
        self.assertIn(note, same.stderr)
        self.assertNotIn(note, self.done("train", "config.json", "--run", "run").stderr)

    def test_a_tokenizer_that_is_read_is_not_written(self):
        self.done("train", "config.json", "--run", "run")
        text = Path("text.txt").read_bytes()
        Path("tt").mkdir()
        Path("tt/vocab.json").write_bytes(text)
        tokenizer = Path("run/tokenizer/tokenizer.json").read_bytes()
        for arguments in (("decode", "data/train.npy", "--tokenizer", "run/tokenizer/tokenizer.json"),
                          ("decode", "data/train.npy", "--tokenizer", "run/tokenizer"),
                          ("encode", "text.txt", "--tokenizer", "run/tokenizer")):
            self.says(2, ["another file"], "tokenizer", *arguments, "--out", "run/tokenizer/tokenizer.json")
        self.says(2, ["another file"], "tokenizer", "train", "tt/vocab.json", "--vocab-size", "300", "--out", "tt")
        self.assertEqual(Path("run/tokenizer/tokenizer.json").read_bytes(), tokenizer)
        self.assertEqual(Path("tt/vocab.json").read_bytes(), text)

    def test_closed_descriptors_are_given_to_no_file(self):
        self.done("train", "config.json", "--run", "open")
        for closed, code in (("2>&-", 0), (">&- 2>&-", 1), ("<&- >&- 2>&-", 1)):
            run = f"closed{len(closed)}"
            arguments = f'train config.json --run {run} --set text.directory=data_{run}'
            result = subprocess.run(["sh", "-c", f'"$0" {arguments} {closed}', PROGRAM], timeout=120)
            self.assertEqual(result.returncode, code, closed)
            self.assertEqual(Path(run, "lock").read_text(), "flashstep train\n")
            for name in ("train.txt", "train.npy"):
                self.assertEqual(Path(f"data_{run}", name).read_bytes(), Path("data", name).read_bytes(), closed)
            for line in Path(run, "metrics.jsonl").read_text().splitlines():
                json.loads(line)

    def test_sentences_have_a_length(self):
        Path("long.json").write_text(json.dumps({"k" * 1_000_000: 1}))
        self.assertLess(len(flashstep("train", "long.json").stderr), 2000)
        Path("nul.json").write_text('{"text": {"source": "text.txt\\u0000x"}}')
        self.says(2, ["text.source", "without a NUL"], "train", "nul.json")
        self.says(2, ["one of text"], "train", "config.json", "--set", "train.steps.x=3")
        self.says(2, ["1 to 4096"], "launch", "-n", "100000", "--", "/bin/true")
        self.says(2, ["expected COMMAND, got none"], "launch", "-n", "2", "--")

    def test_names_that_no_directory_has(self):
        os.symlink("nowhere", "dangling")
        self.says(2, ["an empty one"], "train", "config.json", "--set", "text.directory=")
        for name in ("x" * 300, "dangling"):
            result = flashstep("train", "config.json", "--set", f"text.directory={name}")
            self.assertIn(result.returncode, (1, 2))
            self.assertIn(name, result.stderr.splitlines()[-1])
        self.says(1, ["leads nowhere"], "train", "config.json", "--run", "dangling")

    def test_an_empty_name_is_none(self):
        self.says(2, ["expected a value after --run, got nothing"], "train", "config.json", "--run", "")
        self.says(2, ["expected a value after run, got nothing"], "eval", "")
        self.says(2, ["expected --temperature once, got it 2 times"], "generate", "run", "--prompt", "Once",
                  "--temperature", "0.5", "--temperature", "0.6")

    @unittest.skipUnless(can_mount(), "nothing can be mounted here")
    def test_what_cannot_be_written(self):
        self.done("train", "config.json", "--run", "first")

        def with_data(*arguments):
            return read_only("data", *arguments)

        self.done("train", "config.json", "--run", "second", run=with_data)  # all that it needs is there
        self.assertEqual(Path("first/metrics.jsonl").read_text().count("\n"),
                         Path("second/metrics.jsonl").read_text().count("\n"))
        self.says(1, ["Read-only", "vocab_size is 310 and was 300"], "train", "config.json", "--run", "third", "--set",
                  "tokenizer.vocab_size=310", run=with_data)
        self.says(1, ["Read-only", "validation"], "train", "config.json", "--run", "fourth", "--set",
                  "text.validation_fraction=0.3", run=with_data)
        self.says(2, ["Read-only"], "tokenizer", "train", "missing.txt", "--vocab-size", "300", "--out", "data/new",
                  run=with_data)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
