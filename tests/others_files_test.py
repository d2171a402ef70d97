"""What belongs to others: `train` replaces nothing that it did not make, and notices what is taken from it."""
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from training_run import PROGRAM, write_config


def train(*arguments, **options):
    return subprocess.run([PROGRAM, "train", "config.json", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **options)


def contents(directory):
    """Every file below, and every directory, that is there."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(Path(directory).rglob("*"))}


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, "/")
        os.chdir(directory.name)
        write_config(Path("."), train={"steps": 4}, schedule={"warmup_steps": 1})

    def refused(self, words, *arguments, code=2):
        result = train(*arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("flashstep: "), result.stderr)
        for word in words:
            self.assertIn(word, last)

    def done(self, *arguments):
        result = train(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def put(self, path, text="mine"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)


class DataTest(Case):
    def test_nothing_is_replaced_without_a_manifest(self):
        stories = ("--set", "text.source=stories", "--set", "text.stories_megabytes=1")
        for name, settings in (("train.npy", ()), ("validation.npy", ()), ("train.txt", ()), ("validation.txt", ()),
                               ("tokenizer/vocab.json", ()), ("tokenizer", ()), ("stories.txt", stories)):
            with self.subTest(name):
                self.put(f"data/{name}")
                before = contents("data")
                self.refused([f"data/{name}", "text.directory", "expected", "got"], "--run", "run", *settings)
                after = contents("data")
                after.pop("data/lock", None)
                self.assertEqual(after, before)
                shutil.rmtree("data")

    def test_a_link_that_leads_nowhere_is_something(self):
        os.mkdir("data")
        os.symlink("/nowhere/train.npy", "data/train.npy")
        self.refused(["data/train.npy"], "--run", "run")
        self.assertTrue(os.path.islink("data/train.npy"))

    def test_a_tokenizer_directory_is_replaced_only_if_all_of_it_is_ours(self):
        self.done("--run", "first")
        self.put("data/tokenizer/notes.txt")
        self.refused(["data/tokenizer/notes.txt"], "--run", "second", "--set", "tokenizer.vocab_size=310")
        self.assertEqual(Path("data/tokenizer/notes.txt").read_text(), "mine")

    def test_what_lies_where_a_tokenizer_is_made_stays(self):
        self.put("data/tokenizer.unfinished/mine")
        self.refused(["data/tokenizer.unfinished", "move it away"], "--run", "run")
        self.assertEqual(Path("data/tokenizer.unfinished/mine").read_text(), "mine")

    def test_a_malformed_manifest_claims_nothing(self):
        self.put("data/train.npy")
        self.put("data/train.npy.manifest.json", "{}")
        self.refused(["data/train.npy"], "--run", "run")

    def test_what_was_made_here_is_used_and_made_anew(self):
        self.done("--run", "first")
        before = os.stat("data/train.npy").st_mtime_ns
        os.rename("data", "moved")
        self.done("--run", "second", "--set", "text.directory=moved")
        self.assertEqual(os.stat("moved/train.npy").st_mtime_ns, before)
        self.done("--run", "third", "--set", "text.directory=moved", "--set", "tokenizer.vocab_size=310")

    def test_what_a_killed_preparation_left_is_ours(self):
        self.done("--run", "first")
        whole = Path("data/train.npy").read_bytes()
        for name in ("train.npy", "tokenizer", "validation.txt"):
            path = Path(f"data/{name}.manifest.json")
            manifest = json.loads(path.read_text())
            manifest["inputs"] = []
            for output in manifest["outputs"]:
                output.update(size_bytes=0, modified_ns=0, xxh3_128="")
            path.write_text(json.dumps(manifest))
        self.refused(["was not finished"], "--run", "second", "--skip-data")
        self.done("--run", "second")
        self.assertEqual(Path("data/train.npy").read_bytes(), whole)

    def test_what_somebody_changed_is_kept_aside(self):
        self.done("--run", "first")
        for name in ("train.txt", "tokenizer/merges.txt"):
            path = Path("data", name)
            made = path.read_text()
            path.write_text(made + "MINE\n")
            result = self.done("--run", f"after_{path.stem}")
            aside = Path("data", path.name + ".changed")
            self.assertEqual(aside.read_text(), made + "MINE\n")
            self.assertIn(f"kept as {aside}", result.stderr)
            self.assertEqual(path.read_text(), made)
            path.write_text("once more")
            self.done("--run", f"again_{path.stem}")
            self.assertEqual(Path(f"{aside}-2").read_text(), "once more")

    def test_own_files_are_told_before_long_work(self):
        self.put("data/validation.npy")
        self.refused(["data/validation.npy"], "--run", "run")
        self.assertFalse(os.path.exists("data/tokenizer"))


class RunDirectoryTest(Case):
    def test_a_project_is_no_run(self):
        self.put("project/tokenizer/vocab.json")
        self.put("project/samples.txt")
        self.put("project/lock")
        before = contents("project")
        for run in ("project", "project/", "./project/../project"):
            for resume in ([], ["--resume"]):
                self.refused(["which holds", "choose another run directory"], "--run", run, *resume)
        self.refused(["choose another run directory"], "--run", ".", "--resume")  # a config.json lies here, but no run
        self.assertEqual(contents("project"), before)
        self.assertFalse(os.path.exists("lock"))

    def test_the_directory_of_data_is_no_run(self):
        self.done("--run", "run")
        self.refused(["choose another run directory"], "--run", "data")

    def test_an_empty_directory_is_free(self):
        os.mkdir("empty")
        self.done("--run", "empty")

    def test_a_start_that_was_stopped_early_starts_again(self):
        self.done("--run", "whole")
        mark = Path("whole/lock").read_text()
        for lock, more in (("", ["tokenizer"]), (mark, ["tokenizer"]), (mark, ["tokenizer", "slurm.out"])):
            shutil.rmtree("early", ignore_errors=True)
            self.put("early/lock", lock)
            shutil.copytree("whole/tokenizer", "early/tokenizer")
            if "slurm.out" in more:
                self.put("early/slurm.out")
            self.done("--run", "early")

    def test_a_lock_of_others_is_not_written(self):
        self.put("important")
        Path("linked").mkdir()
        os.symlink("../important", "linked/lock")
        self.put("plain/lock")
        for run in ("linked", "plain"):
            self.refused(["lock"], "--run", run)
            self.assertEqual(Path(run, "lock").read_text(), "mine")
        Path("data").mkdir()
        os.symlink("../important", "data/lock")
        self.refused(["data/lock", "symbolic link"], "--run", "run", code=1)

    def test_a_run_whose_checkpoints_are_gone_keeps_its_history(self):
        self.done("--run", "run")
        metrics = Path("run/metrics.jsonl").read_text()
        shutil.move("run/checkpoints", "elsewhere")
        self.refused(["run/checkpoints", "metrics.jsonl"], "--run", "run", "--resume", "--set", "train.steps=2")
        self.assertEqual(Path("run/metrics.jsonl").read_text(), metrics)
        shutil.move("elsewhere", "run/checkpoints")
        self.done("--run", "run", "--resume")

    def test_files_among_checkpoints_stay(self):
        self.done("--run", "run")
        self.put("run/checkpoints/step_00000001/notes.txt")
        self.done("--run", "run", "--resume", "--set", "train.steps=20", "--set",
                  "checkpointing.checkpointing_interval=4")
        self.assertEqual(Path("run/checkpoints/step_00000001/notes.txt").read_text(), "mine")
        self.assertEqual(len(list(Path("run/checkpoints").glob("step_*/state.json"))), 2)

    def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(self):
        self.done("--run", "run", "--set", "checkpointing.checkpointing_interval=2")
        newest = Path("run/checkpoints/step_00000004/model.safetensors")
        before = contents("run/checkpoints")
        newest.chmod(0)
        as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
        line = [PROGRAM, "train", "config.json", "--run", "run", "--resume", "--set", "train.steps=6"]
        result = subprocess.run((as_user if os.geteuid() == 0 else []) + line, capture_output=True, text=True)
        self.assertEqual(result.returncode, 2, result.stderr)
        for word in (str(newest), "Permission denied", "make it readable"):
            self.assertIn(word, result.stderr.strip().splitlines()[-1])
        newest.chmod(0o644)
        self.assertEqual(contents("run/checkpoints"), before)
        self.assertIn("going on after step 4", self.done(*line[3:]).stderr)

    def test_a_damaged_checkpoint_stays_with_what_lies_in_it(self):
        steps = ("--set", "checkpointing.checkpointing_interval=2", "--set", "train.steps=6")
        self.done("--run", "run", *steps[:2])
        self.put("run/checkpoints/step_00000004/notes.txt")
        self.put("run/checkpoints/step_00000006.unfinished/notes.txt")
        os.truncate("run/checkpoints/step_00000004/model.safetensors", 100)
        before = contents("run/checkpoints/step_00000004")
        self.done("--run", "run", "--resume", *steps)
        after = contents("run/checkpoints/step_00000004.damaged")
        self.assertEqual(list(after.values()), list(before.values()))
        self.assertEqual(Path("run/checkpoints/step_00000006.unfinished/notes.txt").read_text(), "mine")
        self.assertTrue(Path("run/checkpoints/step_00000006/state.json").exists())

    def test_tokens_that_are_cut_short_end_the_run(self):
        for name in ("train", "validation"):
            with self.subTest(name):
                arguments = [PROGRAM, "train", "config.json", "--run", name, "--set", "train.steps=1000000", "--set",
                             "train.evaluate_every=20", "--set", "checkpointing.checkpointing_interval=0", "--set",
                             f"text.directory=data_{name}"]
                process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                self.addCleanup(process.kill)
                metrics = Path(name, "metrics.jsonl")
                deadline = time.time() + 60
                while not metrics.exists() or metrics.read_text().count("\n") < 3:
                    self.assertLess(time.time(), deadline, "waited too long")
                    time.sleep(0.01)
                os.truncate(f"data_{name}/{name}.npy", 200)
                errors = process.communicate(timeout=60)[1]
                self.assertEqual(process.returncode, 1, errors)
                self.assertIn("cut it short", errors.splitlines()[-1])

    def test_runs_of_before_go_on(self):
        self.done("--run", "whole")
        Path("whole/lock").write_text("")  # as it was once
        self.done("--run", "whole", "--resume", "--set", "train.steps=6")
        os.remove("whole/lock")  # copied without it
        self.done("--run", "whole", "--resume", "--set", "train.steps=8")

    def test_the_default_directory_is_the_next_free_one(self):
        self.put("runs/config/notes.txt")
        self.done()
        self.assertTrue(os.path.exists("runs/config-2/metrics.jsonl"))
        self.assertEqual(os.listdir("runs/config"), ["notes.txt"])

    def test_a_run_that_has_begun_keeps_its_directory(self):
        self.put("runs/config/lock", "")
        with open("runs/config/lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.done()
        self.assertTrue(os.path.exists("runs/config-2/metrics.jsonl"))
        self.assertEqual(os.listdir("runs/config"), ["lock"])


class TextTest(Case):
    def test_a_text_that_lies_where_data_are_made_is_left_as_it_is(self):
        self.put("src/text.txt", "a text")
        self.refused(["text.source", "lie apart"], "--run", "run", "--set", "text.source=src", "--set",
                     "text.directory=src")
        self.assertEqual(os.listdir("src"), ["text.txt"])
        self.assertFalse(os.path.exists("run"))


class OutputTest(Case):
    """What other commands write."""

    def flashstep(self, code, *arguments):
        result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stderr

    def test_export_overwrites_no_file_of_a_run(self):
        self.done("--run", "run")
        self.done("--run", "other")
        os.symlink("run/config.json", "link")
        checkpoint = "run/checkpoints/step_00000004"
        before = contents(".")
        for run in ("run", checkpoint, "other"):
            for name in (f"{checkpoint}/model.safetensors", f"{checkpoint}/optimizer.safetensors",
                         f"{checkpoint}/state.json", "run/config.json", "run/metrics.jsonl",
                         "run/tokenizer/vocab.json", "link"):
                with self.subTest(run=run, out=name):
                    error = self.flashstep(2, "export", run, "--out", name, "--dtype", "bf16")
                    self.assertIn("expected to write another file than", error)
        self.assertEqual(contents("."), before)
        for _ in range(2):  # its own is written anew
            self.flashstep(0, "export", "run", "--out", "run/weights.safetensors")

    def test_no_command_overwrites_a_file_of_a_run(self):
        self.done("--run", "run")
        self.put("text.txt", "the cat sat on the mat")
        self.flashstep(0, "tokenizer", "encode", "text.txt", "--tokenizer", "run/tokenizer", "--out", "ids.npy")
        before = contents(".")
        for arguments in (["tokenizer", "train", "text.txt", "--vocab-size", 260, "--out", "run/tokenizer"],
                          ["tokenizer", "encode", "text.txt", "--tokenizer", "run/tokenizer", "--out", "run/config.json"],
                          ["tokenizer", "decode", "ids.npy", "--tokenizer", "run/tokenizer", "--out", "run/samples.txt"],
                          ["data", "stories", "--megabytes", 1, "--seed", 1, "--out", "run/metrics.jsonl"]):
            with self.subTest(arguments=arguments):
                self.assertIn("which is a run's own", self.flashstep(2, *arguments))
        self.assertEqual(contents("."), before)

    def test_export_does_not_overwrite_what_it_reads(self):
        self.done("--run", "run")
        shutil.copy("run/checkpoints/step_00000004/model.safetensors", "model.safetensors")
        self.assertIn("which is read", self.flashstep(2, "export", "model.safetensors", "--out", "model.safetensors"))

    def test_plot_replaces_only_its_own_where_nobody_named_the_place(self):
        for run in ("a", "b"):
            self.done("--run", run)
        for _ in range(2):
            self.flashstep(0, "plot", "a", "b")
            self.flashstep(0, "plot", "a")
        for name in ("loss.svg", "loss.png"):
            for other in ("loss.svg", "loss.png"):
                Path(other).unlink(missing_ok=True)
            self.put(name)
            self.assertIn("--out", self.flashstep(2, "plot", "a", "b"))
            self.assertEqual(Path(name).read_text(), "mine")
        self.flashstep(0, "plot", "a", "b", "--out", "loss")
        os.mkdir("empty")
        Path("empty/metrics.jsonl").touch()
        self.assertIn("expected steps in empty/metrics.jsonl", self.flashstep(2, "plot", "empty", "--out", "none"))
        self.assertFalse(os.path.exists("none.svg"))

    def test_report_replaces_no_document_of_others(self):
        for name in ("report.md", "report.html"):
            self.put(f"documents_{name}/{name}")
            os.mkdir(f"documents_{name}/results")
            error = self.flashstep(2, "report", "--preset", "quick", "--only", "step", "--out", f"documents_{name}")
            self.assertIn(f"documents_{name}/{name}", error)
            self.assertEqual(sorted(os.listdir(f"documents_{name}")), [name, "results"])
            self.assertEqual(Path(f"documents_{name}", name).read_text(), "mine")


class VanishedTest(Case):
    def test_a_run_directory_that_goes_ends_the_run(self):
        for number, take_away in enumerate((shutil.rmtree, lambda run: os.rename(run, "moved"))):
            run = f"run{number}"
            self.done("--run", run)
            process = subprocess.Popen([PROGRAM, "train", "config.json", "--run", run, "--resume", "--set",
                                        "train.steps=1000000", "--set", "train.evaluate_every=0", "--set",
                                        "checkpointing.checkpointing_interval=0"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            lines = Path(run, "metrics.jsonl").read_bytes()
            deadline = time.time() + 60
            while Path(run, "metrics.jsonl").read_bytes() == lines:
                self.assertLess(time.time(), deadline)
                time.sleep(0.01)
            take_away(run)
            stderr = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 1, stderr)
            self.assertIn(f"{run}/metrics.jsonl", stderr.strip().splitlines()[-1])
            self.assertFalse(os.path.exists(run))
        generated = subprocess.run([PROGRAM, "generate", "moved", "--prompt", "cat"], capture_output=True, text=True)
        self.assertEqual(generated.returncode, 0, generated.stderr)


class ResumeTest(Case):
    def test_a_mistyped_run_is_said_where_it_is_seen(self):
        self.done("--run", "runs/tiny")
        for argument in ("--resume", "--resume=auto"):
            shutil.rmtree("runs/tinny", ignore_errors=True)
            result = self.done("--run", "runs/tinny", argument)
            for line in (result.stderr.strip().splitlines()[0], result.stdout.strip().splitlines()[-1]):
                self.assertIn("NOTE: --resume found no checkpoint in runs/tinny", line)
                self.assertIn("did you mean runs/tiny?", line)
        self.assertNotIn("NOTE", self.done("--run", "runs/tiny", "--resume").stdout)

    def test_must_refuses_and_makes_nothing(self):
        self.refused(["runs/none", "--resume=must"], "--run", "runs/none", "--resume=must")
        self.assertFalse(os.path.exists("runs"))
        self.done("--run", "run")
        self.done("--run", "run", "--resume=must")
        self.refused(["--resume=auto", "--resume=must", "--resume=maybe"], "--run", "run", "--resume=maybe")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
