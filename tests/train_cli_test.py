"""The `train`, `generate`, `eval` and `export` commands as a user types them: files, exit codes, sentences, stopping and resuming."""
import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from train_command import PROGRAM, TrainCommandTest, flashstep, metrics, tensors, weights


class TrainTest(TrainCommandTest):
    def test_plan_starts_and_writes_nothing(self):
        before = sorted(os.listdir("."))
        planned = flashstep("train", "config.json", "--plan", "--card", "H200", "--set", "train.precision=bf16")
        self.assertEqual(planned.returncode, 0, planned.stderr)
        self.assertEqual(sorted(os.listdir(".")), before)
        for words in ("Plan of a rank", "1 rank, H200, 139.8 GiB", "AdamW's moments", "Recommended: train.recompute none"):
            self.assertIn(words, planned.stdout)
        for level in ("none", "norms", "inner", "block"):
            self.assertRegex(planned.stdout, rf"(?m)^{level} .* yes +[\d.]+")
        here = flashstep("train", "config.json", "--plan", "--device", "cpu", "--memory", "2GiB", "--ranks", 3)
        self.assertEqual(here.returncode, 0, here.stderr)
        self.assertRegex(here.stdout, r"3 ranks, shard_optimizer none, the CPU, 2.0 GiB")
        self.assertRegex(here.stdout, r"(?m)^block .* yes +- ")
        self.refused(["a GPU with a data sheet, such as H200", "\"K80\""], "train", "config.json", "--plan", "--card", "K80")
        self.refused(["such as 141GiB or 80GB", "\"much\""], "train", "config.json", "--plan", "--memory", "much")
        self.refused(["from 1 to 1048576, got -1"], "train", "config.json", "--plan", "--ranks", -1)
        self.refused(["expected no card"], "train", "config.json", "--plan", "--device", "cpu", "--card", "H200")
        self.refused(["expected 2 processes (parallel.world_size), got 3"], "train", "config.json", "--plan", "--ranks", 3,
                     "--set", "parallel.world_size=2")
        self.refused(["expected --plan"], "train", "config.json", "--ranks", 3)

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
        self.refused(["expected 2 processes (parallel.world_size), got 1"], *train, "--run", "r2", "--set",
                     "parallel.world_size=2", "--set", "text.directory=r2_data")
        self.assertFalse(os.path.exists("r2") or os.path.exists("r2_data"), "before anything is made")
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
                ("expected --precision to be one of fp32, fp32-split, tf32, bf16, bf16-fp8, got fp8", "bench", "step", "--precision", "fp8")):
            self.refused([f"flashstep: {sentence}"], *arguments)

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

    def test_a_start_that_was_killed_early_binds_nobody(self):
        shutil.copytree("whole/tokenizer", "killed/tokenizer")  # all that is there before config.json,
        open("killed/lock", "w").close()  # and what says whose it is
        started = flashstep("train", "config.json", "--run", "killed", "--set", "tokenizer.vocab_size=300", "--set",
                            "text.directory=data300")
        self.assertEqual(started.returncode, 0, started.stderr)
        with open("killed/tokenizer/vocab.json") as file:
            self.assertEqual(len(json.load(file)), 300)

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

    def test_weights_go_on_with_their_own_tokenizer(self):
        Path("mine.txt").write_text(Path("all.txt").read_text()[300_000:500_000])
        train = ("train", "config.json", "--set", "text.source=mine.txt", "--set", "text.directory=mine", "--set",
                 "train.init_from=whole", "--run")
        for weights_of in ("whole", "whole/checkpoints/step_00000012",
                           "whole/checkpoints/step_00000012/model.safetensors"):
            self.refused(["tokenizer that the weights of train.init_from", "whole/tokenizer"], *train, "tuned",
                         "--set", f"train.init_from={weights_of}")
        tuned = flashstep(*train, "tuned", "--set", "tokenizer.path=whole/tokenizer", "--set", "model.rope_theta=500",
                          "--set", "model.window=8")
        self.assertEqual(tuned.returncode, 0, tuned.stderr)
        self.assertIn("NOTE: model.rope_theta was 10000 where the weights of whole were trained, is now 500",
                      tuned.stderr)
        self.assertIn("NOTE: model.window was 0 where", tuned.stderr)
        self.refused(["expected model.num_heads = 2", "got 4"], *train, "other_heads", "--set",
                     "tokenizer.path=whole/tokenizer", "--set", "model.num_heads=4")

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
        # Of text the same, but for the first token's bytes, which nothing predicts.
        decoded = flashstep("tokenizer", "decode", "data/validation.npy", "--tokenizer", "whole/tokenizer", "--out", "held_out.txt")
        self.assertEqual(decoded.returncode, 0, decoded.stderr)
        self.assertEqual(flashstep("eval", "whole", "held_out.txt").stdout, evaluated.stdout)
        byte_count = len(Path("held_out.txt").read_text().replace("<|endoftext|>", ""))
        bits = values["loss"] * values["tokens"] / 0.693147 / byte_count
        self.assertAlmostEqual(values["bits/byte"], bits, delta=bits * 20 / byte_count + 1e-3)
        self.refused(["no.txt"], "eval", "whole", "no.txt")
        # The files of a directory end their documents, as those that a run holds out do.
        os.mkdir("held_out")
        for name, ids in (("a", "Once there was a cat."), ("b", "A dog ran.")):
            Path(f"held_out/{name}.txt").write_text(ids)
        Path("joined.txt").write_text("Once there was a cat.<|endoftext|>A dog ran.<|endoftext|>")
        Path("held_out/c.md").write_text("no text")
        directory = flashstep("eval", "whole", "held_out")
        self.assertEqual(directory.stdout, flashstep("eval", "whole", "joined.txt").stdout)
        self.assertIn("2 files of held_out read, 1 left out", directory.stderr)
        Path("short.txt").write_text("<|endoftext|>")
        self.refused(["at least 2 tokens in short.txt, got 1"], "eval", "whole", "short.txt")

    def test_one_of_a_runs_checkpoints(self):
        losses = {path: flashstep("eval", path, "data/validation.npy").stdout
                  for path in ("whole", "whole/checkpoints/step_00000012/", "whole/checkpoints/step_00000008")}
        whole, newest, earlier = losses.values()
        self.assertEqual(whole, newest)
        self.assertNotEqual(whole, earlier)
        self.assertIn("perplexity", earlier)
        text = flashstep("generate", "whole/checkpoints/step_00000008", "--prompt", "-", input="Once\n")
        self.assertTrue(text.stdout.startswith("Once"), text.stderr)
        named = flashstep("generate", "whole/checkpoints/step_00000008", "--prompt", "Once")
        self.assertEqual(text.stdout, named.stdout)
        shutil.copytree("whole/checkpoints/step_00000008", "alone/checkpoints/step_00000008")
        self.refused(["within its run, RUN/checkpoints/step_N, got alone/checkpoints"], "eval",
                     "alone/checkpoints/step_00000008", "data/validation.npy")
        os.symlink("whole/checkpoints/step_00000008", "best")
        self.assertEqual(flashstep("eval", "best", "data/validation.npy").stdout, earlier)
        here = flashstep("eval", ".", "../../../data/validation.npy", cwd="whole/checkpoints/step_00000008")
        self.assertEqual(here.stdout, earlier, here.stderr)

    def test_a_run_that_diverged_says_so(self):
        train = flashstep("train", "config.json", "--run", "diverged", "--set", "schedule.learning_rate=1000",
                          "--set", "optimizer.clip_norm=0")
        self.assertEqual(train.returncode, 0, train.stderr)
        self.assertIn("-> not finite, all in", train.stdout)
        self.assertIn("NOTE: the run diverged", train.stderr)
        self.assertIn("(no sample: [generate] expected numbers", Path("diverged/samples.txt").read_text())
        self.assertIn("held-out loss not finite since step 6", Path("diverged/loss.svg").read_text())
        evaluated = flashstep("eval", "diverged", "data/validation.npy")
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        self.assertIn("NOTE: the loss is not finite", evaluated.stderr)
        self.assertRegex(evaluated.stdout, r"loss +not finite\nperplexity +not finite\nbits/byte +not finite\n")
        self.refused(["[generate] expected numbers as the model's logits"], "generate", "diverged", "--prompt", "Once")

    def test_a_config_that_was_changed_is_named(self):
        shutil.copytree("whole", "edited")
        config = json.loads(Path("edited/config.json").read_text())
        before, config["model"]["norm_epsilon"] = config["model"]["norm_epsilon"], 0.5
        Path("edited/config.json").write_text(json.dumps(config))
        refusal = ["expected model.norm_epsilon = ", "edited/config.json, as its checkpoint has it, got 0.5"]
        self.refused(refusal, "eval", "edited", "data/validation.npy")
        self.refused(refusal, "generate", "edited", "--prompt", "Once")
        self.refused(["expected model.norm_epsilon = 0.5, as edited/config.json has it, got"],
                     "train", "config.json", "--run", "edited", "--resume", "--set", f"model.norm_epsilon={before}")

    def test_a_start_that_is_refused_leaves_no_run(self):
        ids = ("--set", "tokens.train=data/train.npy", "--set", "tokens.validation=data/validation.npy",
               "--set", "tokens.check_ids=false", "--set", "model.vocab_size=100")
        os.mkdir("empty")
        for directory in ("never/made", "empty"):
            for expected, settings in (("got nowhere, which does not exist", ("--set", "train.init_from=nowhere")),
                                       ("expected token ids below the vocabulary's 100", ids)):
                self.refused([expected], "train", "config.json", "--run", directory, *settings)
        self.assertFalse(os.path.exists("never/made"))
        self.assertEqual(os.listdir("empty"), [])
        # What was trained stays, and what is resumed as it was.
        shutil.copytree("whole", "resumed")
        with open("resumed/metrics.jsonl", "a") as lines:
            lines.write('{"step": 1}\n')
        before = {path: path.read_bytes() for path in Path("resumed").rglob("*") if path.is_file()}
        self.refused(["expected a step of at least 12 in line 14"], "train", "config.json", "--run", "resumed",
                     "--resume", "--set", "train.steps=16")
        self.assertEqual({path: path.read_bytes() for path in Path("resumed").rglob("*") if path.is_file()}, before)

    def test_a_sample_that_cannot_be_written_costs_no_steps(self):
        shutil.copytree("whole", "unsampled")
        os.remove("unsampled/samples.txt")
        os.mkdir("unsampled/samples.txt")
        self.refused(["expected a file, got the directory"], "train", "config.json", "--run", "unsampled", "--resume",
                     "--set", "train.steps=14")
        self.assertIn("step_00000014", os.listdir("unsampled/checkpoints"))

    def test_export(self):
        exported = flashstep("export", "whole", "--out", "weights.safetensors")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        step = Path("whole/checkpoints/step_00000012")
        self.assertEqual(tensors("weights.safetensors"), tensors(step / "model.safetensors"))
        half = flashstep("export", step, "--out", "half.safetensors", "--dtype", "bf16")
        self.assertEqual(half.returncode, 0, half.stderr)
        self.assertEqual({dtype for dtype, _ in tensors("half.safetensors").values()}, {"BF16"})
        text = Path("stories.txt").read_text()
        self.refused(["a .safetensors file to replace", "stories.txt"], "export", "whole", "--out", "stories.txt")
        self.assertEqual(Path("stories.txt").read_text(), text)
        shutil.copytree(step, "step_00000012")  # its file alone is held against its hash, too
        damaged = bytearray(Path("step_00000012/model.safetensors").read_bytes())
        damaged[-1] ^= 1
        Path("step_00000012/model.safetensors").write_bytes(damaged)
        self.refused(["expected contents with the hash"], "export", "step_00000012/model.safetensors", "--out",
                     "never.safetensors")
        os.remove("step_00000012/state.json")
        loose = flashstep("export", "step_00000012/model.safetensors", "--out", "loose.safetensors")
        self.assertEqual(loose.returncode, 0, loose.stderr)
        self.refused(["expected a .safetensors file, a checkpoint or a run with one", "nowhere"],
                     "export", "nowhere", "--out", "never.safetensors")
        self.assertFalse(Path("never.safetensors").exists())

    def test_export_for_other_programs(self):
        exported = flashstep("export", "whole", "--format", "llama", "--out", "llama", "--dtype", "bf16")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        config = json.loads(Path("llama/config.json").read_text())
        self.assertEqual((config["num_hidden_layers"], config["vocab_size"], config["torch_dtype"]), (2, 400, "bfloat16"))
        self.assertEqual(Path("llama/tokenizer.json").read_bytes(), Path("whole/tokenizer/tokenizer.json").read_bytes())
        self.assertEqual(json.loads(Path("llama/tokenizer_config.json").read_text())["eos_token"], "<|endoftext|>")
        files = sorted(os.listdir("llama"))
        self.refused(["a new directory, or an empty one, got llama"], "export", "whole", "--format", "llama", "--out",
                     "llama")
        self.assertEqual(sorted(os.listdir("llama")), files)
        of_one = flashstep("export", "whole/checkpoints/step_00000012", "--format", "llama", "--out", "one", "--dtype", "bf16")
        self.assertEqual(of_one.returncode, 0, of_one.stderr)
        self.assertEqual(Path("one/model.safetensors").read_bytes(), Path("llama/model.safetensors").read_bytes())
        # A full disk leaves nothing.
        def no_space():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        self.refused(["not_made/"], "export", "whole", "--format", "llama", "--out", "not_made", code=1, preexec_fn=no_space)
        self.assertFalse(os.path.exists("not_made"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
