"""What `flashstep train` makes of text, tokenizer and token files, its own and those of others."""
import fcntl
import json
import os
import shutil
import signal
import unittest
from pathlib import Path

from train_command import TrainCommandTest, flashstep, metrics, weights


class TrainDataTest(TrainCommandTest):
    def test_the_same_seed_gives_the_same_bits_and_data_is_made_once(self):
        before = os.stat("data/train.npy").st_mtime_ns
        self.assertEqual(flashstep("train", "config.json", "--run", "again").returncode, 0)
        self.assertEqual(os.stat("data/train.npy").st_mtime_ns, before)
        self.assertEqual(metrics("whole"), metrics("again"))
        self.assertEqual(weights("whole", 12), weights("again", 12))

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

    def test_two_special_tokens_are_not_one_that_holds_a_line_break(self):
        for index, tokens in enumerate((["<x>", "<y>"], ["<x>\n<y>"], ["<x>\\n<y>"])):
            result = flashstep("train", "config.json", "--run", f"special_{index}", "--set", "text.directory=special",
                               "--set", f"tokenizer.special_tokens={json.dumps(tokens)}")
            self.assertEqual(result.returncode, 0, result.stderr)
            made = json.loads(Path("special/tokenizer/tokenizer.json").read_text())
            self.assertEqual([token["content"] for token in made["added_tokens"]], tokens)

    def test_documents_are_apart(self):
        train = ("train", "config.json", "--set", "text.separate_documents=true", "--set", "schedule.cosine_steps=12",
                 "--run")
        result = flashstep(*train, "apart", "--set", "train.steps=6")
        self.assertEqual(result.returncode, 0, result.stderr)
        made = json.loads(Path("data/tokenizer/tokenizer.json").read_text())
        [end] = [token["id"] for token in made["added_tokens"] if token["content"] == "<|endoftext|>"]
        self.assertEqual(json.loads(Path("apart/config.json").read_text())["model"]["document_end"], end)
        self.assertNotEqual(metrics("apart")[3]["loss"], metrics("whole")[3]["loss"])
        resumed = flashstep(*train, "apart", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual(flashstep(*train, "apart_at_once").returncode, 0)
        self.assertEqual(weights("apart", 12), weights("apart_at_once", 12))
        self.refused(["expected text.separate_documents = true"], "train", "config.json", "--run", "apart", "--resume", "--set",
                     "train.steps=14")
        self.refused(["one of the tokenizer's special tokens, <|endoftext|>,", 'got "."'], *train, "r", "--set",
                     "text.document_end=.", "--set", "text.directory=points")
        self.refused([f"expected model.document_end {end}, which is the token of"], *train, "r", "--set",
                     f"model.document_end={end + 1 if end == 0 else 0}")

    def test_a_file_of_a_directory_ends_a_document(self):
        stories, end = Path("stories.txt").read_text(), "<|endoftext|>"
        stories = stories[:stories.rindex(end)] + end + "\n"
        Path("ended.txt").write_text(stories)
        Path("several").mkdir()
        for name, text in {"a": stories + "The last word is alpha", "b": "beta begins here<|endoftext|> \n", "c": "gamma\n",
                           "d": "delta" + stories}.items():
            Path(f"several/{name}.txt").write_text(text)
        train = ("train", "config.json", "--set", "text.source=several", "--set", "text.validation=ended.txt",
                 "--set", "text.directory=of_several")
        self.assertEqual(flashstep(*train, "--run", "several_1").returncode, 0)

        def decoded(name):
            result = flashstep("tokenizer", "decode", f"of_several/{name}.npy", "--tokenizer", "of_several/tokenizer",
                               "--out", "decoded.txt")
            self.assertEqual(result.returncode, 0, result.stderr)
            return Path("decoded.txt").read_text()

        self.assertIn("The last word is alpha<|endoftext|>beta begins here<|endoftext|> \ngamma\n<|endoftext|>delta",
                      decoded("train"))
        self.assertTrue(decoded("train").endswith(stories))
        self.assertEqual(decoded("validation"), stories)

        # As before there were ends between files: tokens of several files are made anew, and why is said.
        def manifest(name):
            return json.loads(Path(f"of_several/{name}.npy.manifest.json").read_text())

        self.assertEqual(manifest("train")["settings"].pop("document_ends_added"), '2 of "<|endoftext|>"')
        self.assertEqual(list(manifest("validation")["settings"]), ["tokenizer"])
        earlier = manifest("train")
        del earlier["settings"]["document_ends_added"]
        Path("of_several/train.npy.manifest.json").write_text(json.dumps(earlier))
        self.refused(['document_ends_added is 2 of "<|endoftext|>" and was not set'], *train, "--run", "r", "--skip-data")
        self.assertEqual(flashstep(*train, "--run", "several_2").returncode, 0)

    def test_the_end_of_a_part_that_is_cut_within_a_document_ends_none(self):
        Path("book.txt").write_text("".join(f"line {line}\n" for line in range(2000)))
        result = flashstep("train", "config.json", "--run", "book", "--set", "text.source=book.txt",
                           "--set", "text.directory=of_book")
        self.assertEqual(result.returncode, 0, result.stderr)
        for name, added in (("train", None), ("validation", '1 of "<|endoftext|>"')):
            manifest = json.loads(Path(f"of_book/{name}.npy.manifest.json").read_text())
            self.assertEqual(manifest["settings"].get("document_ends_added"), added)

    def test_token_files_of_others_are_checked(self):
        given = ["--set", "tokens.train=data/train.npy", "--set", "tokens.validation=data/validation.npy",
                 "--set", "tokenizer.path=data/tokenizer"]
        result = flashstep("train", "config.json", "--run", "given", *given)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(weights("whole", 12), weights("given", 12))
        self.refused(["below"], "train", "config.json", "--run", "r", *given, "--set", "model.vocab_size=300")

    def test_tokens_that_nothing_names_the_tokenizer_of_want_one(self):
        os.makedirs("foreign")
        for name in ("train", "validation"):
            shutil.copy(f"data/{name}.npy", f"foreign/{name}.npy")
        train = ("train", "config.json", "--run", "foreign_run", "--set", "text.source=stories", "--set",
                 "text.directory=foreign_data", "--set", "tokens.train=foreign/train.npy", "--set",
                 "tokens.validation=foreign/validation.npy")
        self.refused(["expected tokenizer.path beside tokens.train", "foreign/train.npy"], *train)
        self.assertFalse(os.path.exists("foreign_data"))
        trained = flashstep(*train, "--set", "tokenizer.path=data/tokenizer")
        self.assertEqual(trained.returncode, 0, trained.stderr)

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
