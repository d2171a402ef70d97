"""`flashstep import` as a user types it: what was exported comes back, files in parts, what is refused."""
import array
import json
import os
import resource
import shutil
import unittest
from pathlib import Path

from train_command import TrainCommandTest, flashstep, tensors


def safetensors(path, entries):
    """entries: dtype, shape and bytes by name."""
    header, begin = {}, 0
    for name, (dtype, shape, content) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(content)]}
        begin += len(content)
    text = json.dumps(header).encode()
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(entry[2] for entry in entries.values()))


def entries_of(path):
    content = Path(path).read_bytes()
    header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
    return {name: (dtype, header[name]["shape"], data) for name, (dtype, data) in tensors(path).items()}


class ImportCommand(TrainCommandTest):
    def succeeds(self, *arguments):
        result = flashstep(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def setUp(self):
        self.addCleanup(os.chdir, os.getcwd())
        directory = self.id().rsplit(".", 1)[1]
        os.mkdir(directory)
        os.chdir(directory)
        self.succeeds("export", "../whole", "--format", "llama", "--out", "llama")

    def test_what_was_exported_comes_back(self):
        said = self.succeeds("import", "llama")
        self.assertTrue(said.startswith("runs/llama: "), said)
        weights = "checkpoints/step_00000000/model.safetensors"
        self.assertEqual(tensors(f"runs/llama/{weights}"),
                         tensors("../whole/checkpoints/step_00000012/model.safetensors"))
        self.assertEqual(self.succeeds("eval", "runs/llama", "../stories.txt"),
                         self.succeeds("eval", "../whole", "../stories.txt"))
        prompt = ["--prompt", "Once", "--max-tokens", 12]
        self.assertEqual(self.succeeds("generate", "runs/llama", *prompt), self.succeeds("generate", "../whole", *prompt))
        self.succeeds("export", "runs/llama", "--format", "llama", "--out", "again")
        self.assertEqual(Path("again/model.safetensors").read_bytes(), Path("llama/model.safetensors").read_bytes())
        self.refused(["runs/llama holds a run already"], "import", "llama", "--run", "runs/llama")
        self.succeeds("import", "llama")  # beside it
        self.assertEqual(sorted(os.listdir("runs")), ["llama", "llama-2"])

    def test_its_config_trains_on(self):
        self.succeeds("import", "llama", "--run", "run")
        text = ["--set", "text.source=../stories.txt", "--set", "train.threads=1", "--set", "sampling.prompts=[]"]
        steps = ["--set", "train.steps=3", "--set", "schedule.warmup_steps=0", "--set", "train.evaluate_every=3"]
        before = json.loads(Path("../whole/metrics.jsonl").read_text().splitlines()[-1])["val_loss"]
        self.succeeds("train", "run/config.json", "--run", "tuned", *text, *steps)
        first = json.loads(Path("tuned/metrics.jsonl").read_text().splitlines()[0])
        self.assertLess(abs(first["val_loss"] - before), 0.2)  # another part of the text
        config = json.loads(Path("run/config.json").read_text())
        config["text"]["source"] = "../stories.txt"
        Path("run/config.json").write_text(json.dumps(config))
        self.refused(["flashstep import", "train.init_from takes its weights"], "train", "run/config.json", "--run",
                     "run", "--resume", "--set", "train.threads=1")

    def test_a_token_before_each_text(self):
        """As Llama 3's tokenizer and positions have it."""
        tokenizer = json.loads(Path("llama/tokenizer.json").read_text())
        end = tokenizer["added_tokens"][0]
        single = [{"SpecialToken": {"id": end["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing", "single": single, "pair": single + single,
            "special_tokens": {end["content"]: {"id": end["content"], "ids": [end["id"]], "tokens": [end["content"]]}}}
        tokenizer["model"]["ignore_merges"] = True
        Path("llama/tokenizer.json").write_text(json.dumps(tokenizer))
        config = json.loads(Path("llama/config.json").read_text())
        scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8}
        Path("llama/config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
        said = flashstep("import", "llama", "--run", "run")
        self.assertIn(f"NOTE: its texts begin with {end['content']}: write it into prompts", said.stderr)
        self.assertEqual(json.loads(Path("run/config.json").read_text())["sampling"]["prompts"],
                         [end["content"] + "Once upon a time"])
        self.succeeds("export", "run", "--format", "llama", "--out", "again")
        again = json.loads(Path("again/tokenizer.json").read_text())
        self.assertEqual(again["post_processor"]["processors"][1]["single"], single)
        self.assertTrue(again["model"]["ignore_merges"])
        self.assertEqual(json.loads(Path("again/config.json").read_text())["rope_scaling"], scaling)
        self.assertNotEqual(self.succeeds("eval", "run", "../stories.txt"),
                            self.succeeds("eval", "../whole", "../stories.txt"))

    def test_a_head_of_its_own(self):
        """Where both are there and differ, transformers ties nothing, whatever the config says."""
        config = json.loads(Path("llama/config.json").read_text())
        self.assertFalse(config["tie_word_embeddings"])
        Path("llama/config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        said = flashstep("import", "llama", "--run", "run")
        self.assertIn("NOTE: tie_word_embeddings is true, but lm_head.weight differs", said.stderr)
        self.assertEqual(self.succeeds("eval", "run", "../stories.txt"),
                         self.succeeds("eval", "../whole", "../stories.txt"))
        entries = entries_of("llama/model.safetensors")
        entries["lm_head.weight"] = entries["model.embed_tokens.weight"]
        safetensors("llama/model.safetensors", entries)
        self.assertNotIn("lm_head", flashstep("import", "llama", "--run", "tied").stderr)
        self.assertTrue(json.loads(Path("tied/config.json").read_text())["model"]["tie_embeddings"])

    def test_float64_stays(self):
        def widened(content):
            return array.array("d", array.array("f", content)).tobytes()

        entries = entries_of("llama/model.safetensors")
        safetensors("llama/model.safetensors",
                    {name: ("F64", shape, widened(content)) for name, (_, shape, content) in entries.items()})
        self.succeeds("import", "llama", "--run", "run")
        self.succeeds("export", "run", "--format", "llama", "--out", "again")
        self.assertEqual(json.loads(Path("again/config.json").read_text())["torch_dtype"], "float64")
        self.assertEqual({entry[0] for entry in entries_of("again/model.safetensors").values()}, {"F64"})

    def test_what_tokens_are(self):
        """Several ends of a text, and tokens that are added but not special, come and go."""
        tokenizer = json.loads(Path("llama/tokenizer.json").read_text())
        end, model = tokenizer["added_tokens"][0], tokenizer["model"]
        ids = []
        for _ in range(2):  # in place of what the last merges make
            left, right = model["merges"].pop()
            ids.append(model["vocab"].pop(left + right))
        shown = {**end, "id": ids[1], "content": "<tool>", "special": False}
        turn = {**end, "id": ids[0], "content": "<turn>"}
        tokenizer["added_tokens"] += [shown, turn]
        Path("llama/tokenizer.json").write_text(json.dumps(tokenizer))
        config = json.loads(Path("llama/config.json").read_text())
        Path("llama/config.json").write_text(json.dumps({**config, "eos_token_id": [end["id"], turn["id"]]}))
        said = flashstep("import", "llama", "--run", "run")
        self.assertIn("NOTE: its texts may end with <turn>, too: generate --stop '<turn>'", said.stderr)
        self.succeeds("export", "run", "--format", "llama", "--out", "again")
        again = json.loads(Path("again/tokenizer.json").read_text())["added_tokens"]
        self.assertEqual({token["content"]: token["special"] for token in again},
                         {end["content"]: True, "<tool>": False, "<turn>": True})

    def test_files_in_parts_and_short_numbers(self):
        self.succeeds("export", "../whole", "--format", "llama", "--out", "short", "--dtype", "bf16")
        whole = entries_of("short/model.safetensors")
        os.remove("short/model.safetensors")
        places = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(whole)}
        index = Path("short/model.safetensors.index.json")
        index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
        for file in set(places.values()):
            safetensors(f"short/{file}", {name: whole[name] for name in whole if places[name] == file})
        self.succeeds("import", "short", "--run", "run")
        of_run = tensors("run/checkpoints/step_00000000/model.safetensors")
        self.assertEqual({dtype for dtype, _ in of_run.values()}, {"BF16"})
        self.succeeds("export", "run", "--format", "llama", "--out", "again")
        self.assertEqual(tensors("again/model.safetensors"), {name: (entry[0], entry[2]) for name, entry in whole.items()})
        self.succeeds("eval", "run", "../stories.txt")
        for file in ("../llama/model.safetensors", "/etc/passwd", 3):
            index.write_text(json.dumps({"weight_map": {**places, next(iter(whole)): file}}))
            self.refused(["the name of a .safetensors file beside it"], "import", "short", "--run", "other")
        os.remove("short/model-1.safetensors")
        index.write_text(json.dumps({"weight_map": places}))
        self.refused(["model-1.safetensors"], "import", "short", "--run", "other")
        self.assertFalse(os.path.exists("other"))

    def test_what_is_missing_or_another(self):
        def changed(**values):
            config = json.loads(Path("llama/config.json").read_text())
            Path("changed/config.json").write_text(json.dumps({**config, **values}))
            return "import", "changed", "--run", "other"
        shutil.copytree("llama", "changed")
        self.refused(["changed/config.json", "attention_bias"], *changed(attention_bias=True))
        self.refused(["at least the tokenizer's 400, got 300"], *changed(vocab_size=300))
        self.refused(["model.embed_tokens.weight of shape [500, 32]"], *changed(vocab_size=500))
        self.refused(["model.layers.2", "not there"], *changed(num_hidden_layers=3))
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            shutil.copytree("llama", f"without_{name}")
            os.remove(f"without_{name}/{name}")
            self.refused([name], "import", f"without_{name}", "--run", "other")
        self.refused(["nowhere"], "import", "nowhere", "--run", "other")
        self.assertFalse(os.path.exists("other"))

    def test_a_full_disk_leaves_nothing(self):
        def no_space():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        self.refused(["model.safetensors"], "import", "llama", "--run", "run", code=1, preexec_fn=no_space)
        self.assertFalse(os.path.exists("run"))
        self.succeeds("import", "llama", "--run", "run")


if __name__ == "__main__":
    unittest.main(verbosity=2)
