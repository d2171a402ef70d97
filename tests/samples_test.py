"""Where what a model writes ends: at the text that ends a document, however many tokens it is, and at --stop."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from training_run import PROGRAM, write_config


def flashstep(*arguments, **options):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


class SamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        os.chdir(cls.directory.name)
        # Bytes are the tokens: every text of two bytes is two.
        write_config(Path("."), tokenizer={"vocab_size": 257}, text={"document_end": "e "},
                     schedule={"learning_rate": 0.02, "min_learning_rate": 0.01},  # enough for letters and spaces
                     sampling={"max_tokens": 300, "temperature": 0.5, "prompts": ["the cat", "one "]})
        done = flashstep("train", "config.json", "--run", "run")
        assert done.returncode == 0, done.stderr
        config = json.loads(Path("run/config.json").read_text())
        config["text"]["document_end"] = "no such text"
        shutil.copytree("run", "endless")
        Path("endless/config.json").write_text(json.dumps(config))

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        cls.directory.cleanup()

    def generate(self, run, *arguments, code=0):
        result = flashstep("generate", run, "--prompt", "the cat", "--max-tokens", 300, "--temperature", 0.5,
                           *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.removesuffix("\n") if code == 0 else result.stderr

    def test_samples_of_training_end_with_their_document(self):
        parts = Path("run/samples.txt").read_text().split("=== after step")[1:]
        self.assertEqual(len(parts), 2)
        for part in parts:
            for sample in part.split("===\n", 1)[1].split("\n\n"):
                written = sample.removeprefix("the cat").removeprefix("one ")
                self.assertNotIn("e ", written)

    def test_generate_ends_at_the_text(self):
        endless = self.generate("endless")
        end = endless.index("e ", len("the cat"))  # the prompt's own is none
        self.assertEqual(self.generate("run"), endless[:end])
        self.assertEqual(self.generate("endless", "--stop", "e "), endless[:end])

    def test_what_was_written_until_ctrl_c_is_printed(self):
        endless = self.generate("endless")
        process = subprocess.Popen([PROGRAM, "generate", "endless", "--prompt", "the cat", "--max-tokens", "1000000",
                                    "--temperature", "0.5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out = process.stdout.read(len(endless))  # printed as it is written
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(out, endless)
        self.assertTrue(rest.endswith("\n"))
        self.assertIn("what was written so far is printed", err)

    def test_a_long_prompt_has_a_note(self):
        result = flashstep("generate", "endless", "--prompt", "the cat " * 40, "--max-tokens", 3)
        self.assertIn("NOTE: of the prompt's 320 tokens the model sees the last ", result.stderr)

    def test_the_first_of_several_ends_it(self):
        endless = self.generate("endless")
        end = min(endless.index(stop, len("the cat")) for stop in ("e ", " o"))
        for stops in (("e ", " o"), (" o", "e ")):
            arguments = [word for stop in stops for word in ("--stop", stop)]
            self.assertEqual(self.generate("endless", *arguments), endless[:end])
        self.assertEqual(self.generate("endless", "--stop", "nowhere in it"), endless)

    def test_another_tokenizer_is_refused(self):
        shutil.copytree("run", "exchanged")
        for path in Path("exchanged/tokenizer").iterdir():
            path.unlink()
        trained = flashstep("tokenizer", "train", "text.txt", "--vocab-size", 258, "--out", "other")
        self.assertEqual(trained.returncode, 0, trained.stderr)
        shutil.copytree("other", "exchanged/tokenizer", dirs_exist_ok=True)
        self.assertIn("expected the tokenizer that the run was trained with", self.generate("exchanged", code=2))

    def test_bytes_of_zero_are_written(self):
        written = flashstep("generate", "run", "--prompt", "-", "--max-tokens", 0, input="a\0b")
        self.assertEqual(written.stdout, "a\0b\n", written.stderr)

    def test_an_empty_prompt_begins_a_document(self):
        begun = flashstep("generate", "run", "--prompt", "", "--max-tokens", 300, "--temperature", 0.5)
        self.assertEqual(begun.returncode, 0, begun.stderr)
        self.assertNotIn("e ", begun.stdout)
        self.assertIn("--prompt TEXT REQUIRED", flashstep("generate", "--help").stdout)

    def test_an_empty_stop_is_refused(self):
        self.assertIn("expected a text that ends", self.generate("endless", "--stop", "", code=2))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
