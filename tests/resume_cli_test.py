"""What a resumed `flashstep train` may be given otherwise than the run before it, and what not."""
import json
import os
import shutil
import unittest
from pathlib import Path

from train_command import TrainCommandTest, flashstep, metrics


def contents(directory):
    """Each file's bytes and time of change."""
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in Path(directory).rglob("*") if path.is_file()}


class ResumeTest(TrainCommandTest):
    def test_paths_may_be_spelled_otherwise_on_resuming(self):
        train = ("train", "config.json", "--run", "respelled", "--set")
        self.assertEqual(flashstep(*train, "train.steps=4").returncode, 0)
        os.makedirs("copy", exist_ok=True)
        shutil.copy("stories.txt", "copy/stories.txt")
        for steps, source in ((6, "./stories.txt"), (8, Path("stories.txt").resolve()), (12, "copy/stories.txt")):
            resumed = flashstep(*train, f"text.source={source}", "--set", f"train.steps={steps}", "--resume")
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            self.assertIn("[resume] text.source was", resumed.stderr)
        before = os.stat("data/train.npy").st_mtime_ns
        Path("other.txt").write_text(Path("all.txt").read_text()[:150_000])
        other = (*train, "text.source=other.txt", "--set", "train.steps=14", "--resume")
        self.refused(["[resume]", "training data that the run has read so far"], *other)
        self.assertEqual(os.stat("data/train.npy").st_mtime_ns, before)
        self.refused(["[resume]", "tokenizer that the run began with"], *other, "--set", "text.directory=copied")

    def test_a_run_goes_on_where_its_text_is_not(self):
        shutil.copytree("whole", "moved/run")
        for name in ("train", "validation"):
            shutil.copy(f"data/{name}.npy", f"moved/{name}.npy")
        resumed = flashstep("train", "config.json", "--run", "moved/run", "--resume", "--set", "train.steps=14", "--set",
                            "text.source=gone.txt", "--set", "tokens.train=moved/train.npy", "--set",
                            "tokens.validation=moved/validation.npy", "--set", "tokenizer.path=moved/run/tokenizer")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)

    def test_a_warm_up_that_is_not_given_stays_the_runs(self):
        config = json.loads(Path("config.json").read_text())
        del config["schedule"]["warmup_steps"]
        Path("no_warm_up.json").write_text(json.dumps(config))
        train = ("train", "no_warm_up.json", "--run", "short", "--set")
        self.assertEqual(flashstep(*train, "train.steps=12").returncode, 0)
        resumed = flashstep(*train, "train.steps=40", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertNotIn("warmup_steps", resumed.stderr)
        self.assertEqual(json.loads(Path("short/config.json").read_text())["schedule"]["warmup_steps"], 1)
        # Never longer than what there is now: the run can be read again.
        shorter = flashstep(*train, "train.steps=41", "--resume", "--set", "schedule.cosine_steps=5")
        self.assertEqual(shorter.returncode, 0, shorter.stderr)
        self.assertEqual(flashstep("generate", "short", "--prompt", "Once").returncode, 0)
        given = flashstep(*train, "train.steps=42", "--resume", "--set", "schedule.warmup_steps=2")
        self.assertIn("schedule.warmup_steps was 1, is now 2", given.stderr)

    def test_a_stable_rate_that_decays(self):
        train = ("train", "config.json", "--run", "stable", "--set", "schedule.kind=wsd", "--set", "schedule.decay_steps=4")
        def rates():
            return [row["lr"] for row in metrics("stable") if "lr" in row]
        self.assertEqual(flashstep(*train, "--set", "train.steps=8").returncode, 0)
        decay = [0.00775, 0.0055, 0.00325, 0.001]
        for rate, expected in zip(rates()[4:], decay, strict=True):
            self.assertAlmostEqual(rate, expected)
        resumed = flashstep(*train, "--set", "train.steps=16", "--resume")
        self.assertIn("train.steps was 8, is now 16: the learning rate falls until then", resumed.stderr)
        self.assertEqual(rates()[8:12], [0.01] * 4)
        for rate, expected in zip(rates()[12:], decay, strict=True):
            self.assertAlmostEqual(rate, expected)

    def test_a_text_that_changed_is_named(self):
        os.makedirs("texts")
        shutil.copy("stories.txt", "texts/a.txt")
        train = ("train", "config.json", "--run", "grown", "--set", "text.source=texts", "--set", "text.directory=kept")
        self.assertEqual(flashstep(*train).returncode, 0)
        before = contents("kept")
        shutil.copy("all.txt", "texts/b.txt")
        other = ["[resume]", "another text: has texts (text.source) changed since", "kept is as it was"]
        self.refused(other, *train, "--resume")
        self.assertEqual(contents("kept"), before)
        os.remove("texts/b.txt")
        text = Path("texts/a.txt").read_text()
        Path("texts/a.txt").write_text(text + text[:1000])
        self.refused(other, *train, "--resume")
        self.assertEqual(contents("kept"), before)
        # What is missing is made again, of the text as it was.
        Path("texts/a.txt").write_text(text)
        for name in ("validation.npy", "train.txt"):
            os.remove(f"kept/{name}")
        resumed = flashstep(*train, "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual({name: content for name, (content, _) in contents("kept").items() if "manifest" not in name},
                         {name: content for name, (content, _) in before.items() if "manifest" not in name})
        # Somebody else has made it anew meanwhile: it is not the run's any more.
        shutil.copy("all.txt", "texts/a.txt")
        self.assertEqual(flashstep(*train[:3], "other", *train[4:]).returncode, 0)
        Path("texts/a.txt").write_text(text)
        resumed = flashstep(*train, "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)

    def test_other_held_out_data_are_noted(self):
        os.makedirs("given")
        for name in ("train", "validation"):
            shutil.copy(f"data/{name}.npy", f"given/{name}.npy")
        train = ("train", "config.json", "--run", "of_given", "--set", "tokens.train=given/train.npy",
                 "--set", "tokens.validation=given/validation.npy", "--set")
        self.assertEqual(flashstep(*train, "train.steps=4").returncode, 0)
        said = "the held-out data are not those of the steps before"
        self.assertNotIn(said, flashstep(*train, "train.steps=6", "--resume").stderr)
        shutil.copy("given/train.npy", "given/validation.npy")
        resumed = flashstep(*train, "train.steps=8", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertIn(said, resumed.stderr)

    def test_tokens_of_another_tokenizer_are_refused(self):
        os.makedirs("strange")
        for name in ("train", "validation"):
            shutil.copy(f"data/{name}.npy", f"strange/{name}.npy")
            manifest = json.loads(Path(f"data/{name}.npy.manifest.json").read_text())
            manifest["settings"]["tokenizer"] = "0" * 32
            Path(f"strange/{name}.npy.manifest.json").write_text(json.dumps(manifest))
        refusal = ["[data]", "tokens of this tokenizer", "another one (" + "0" * 32]
        self.refused(refusal, "eval", "whole", "strange/validation.npy")
        self.refused(refusal, "train", "config.json", "--run", "strange_run", "--set", "tokens.train=strange/train.npy",
                     "--set", "tokens.validation=strange/validation.npy")
        os.remove("strange/validation.npy.manifest.json")  # nothing is known of it then
        self.assertEqual(flashstep("eval", "whole", "strange/validation.npy").returncode, 0)

    def test_another_tokenizer_is_refused_where_the_runs_is_gone(self):
        os.makedirs("bare")
        for name in ("train", "validation"):
            shutil.copy(f"data/{name}.npy", f"bare/{name}.npy")
        made = flashstep("tokenizer", "train", "all.txt", "--vocab-size", 400, "--special-token", "<|endoftext|>", "--out",
                         "bare/other")
        self.assertEqual(made.returncode, 0, made.stderr)
        train = ("train", "config.json", "--run", "of_bare", "--set", "tokens.train=bare/train.npy", "--set",
                 "tokens.validation=bare/validation.npy", "--set")
        begun = flashstep(*train, "tokenizer.path=whole/tokenizer", "--set", "train.steps=4")
        self.assertEqual(begun.returncode, 0, begun.stderr)
        kept = contents("of_bare/tokenizer")
        refusal = ["[resume]", "expected the tokenizer that the run began with", "bare/other"]
        resume = (*train, "tokenizer.path=bare/other", "--set", "train.steps=6", "--resume")
        self.refused(refusal, *resume)
        shutil.rmtree("of_bare/tokenizer")
        self.refused(refusal, *resume)
        self.assertFalse(os.path.exists("of_bare/tokenizer"))
        shutil.copytree("bare/other", "of_bare/tokenizer")
        self.refused(refusal[:2], *resume)
        shutil.rmtree("of_bare/tokenizer")
        resumed = flashstep(*train, "tokenizer.path=whole/tokenizer", "--set", "train.steps=6", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual({name: content for name, (content, _) in contents("of_bare/tokenizer").items()},
                         {name: content for name, (content, _) in kept.items()})

    def test_the_origin_of_the_weights_stays_the_runs(self):
        begun = flashstep("train", "config.json", "--run", "second", "--set", "train.init_from=whole")
        self.assertEqual(begun.returncode, 0, begun.stderr)
        resume = ("train", "config.json", "--run", "second", "--resume", "--set", "train.steps=14")
        self.refused(["expected no train.init_from, or the run's own, whole, got data"], *resume,
                     "--set", "train.init_from=data")
        for own in ([], ["--set", "train.init_from=./whole"]):
            resumed = flashstep(*resume, *own)
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            self.assertEqual(json.loads(Path("second/config.json").read_text())["train"]["init_from"], "whole")


if __name__ == "__main__":
    unittest.main(verbosity=2)
