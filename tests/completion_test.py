"""The script that `flashstep completion` prints, sourced by a real bash and asked to complete."""
import os
import subprocess
import sys

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]


def complete(*words):
    """What bash offers for the last of `words` typed after `flashstep`."""
    typed = " ".join(f"'{word}'" for word in ("flashstep", *words))
    script = (
        f"source <('{PROGRAM}' completion bash); COMP_WORDS=({typed}); COMP_CWORD={len(words)};"
        "_flashstep; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.split()


def expect(offered, wanted, words):
    missing = [word for word in wanted if word not in offered]
    if missing:
        sys.exit(f"expected {missing} among the completions of {words}, got {offered}")


expect(complete("tra"), ["train"], ["tra"])
expect(complete("tokenizer", "en"), ["encode"], ["tokenizer", "en"])
expect(complete("tokenizer", "train", "--vocab"), ["--vocab-size"], ["tokenizer", "train", "--vocab"])
expect(complete("train", "config.json", "--res"), ["--resume"], ["train", "config.json", "--res"])
expect(complete("train", "config.json", "--set", "model.d_m"), ["model.d_model"], ["--set", "model.d_m"])
expect(complete("train", "config.json", "--device", ""), ["cpu", "cuda"], ["--device", ""])
expect(complete("train", "config.json", "--attention", ""), ["auto", "naive", "cpu"], ["--attention", ""])
expect(complete("train", "config.json", "--wrapper", "b"), ["bucketed"], ["--wrapper", "b"])
expect(complete("bench", "step", "--precision", ""), ["fp32", "bf16"], ["bench", "step", "--precision", ""])
expect(complete("bench", "step", "--size", ""), ["tiny", "mini", "base", "xl", "all"], ["bench", "step", "--size", ""])
expect(complete("completion", ""), ["bash", "zsh"], ["completion", ""])
expect(complete("report", "--no-pdf", "--red"), ["--redraw"], ["report", "--no-pdf", "--red"])
for words, wanted, others in (
        (("report", "--only", ""), "attention_grid", "dtypes"),
        (("precision", "--only", ""), "dtypes", "attention_grid"),
        (("bench", "attention", "--preset", ""), "handout", "2026"),
        (("train", "config.json", "--wrapper", ""), "bucketed", "nccl"),
        (("account", "step", "--attention", ""), "naive", "sdpa"),
        (("bench", "ddp", "--attention", ""), "sdpa", "kernel"),
        (("bench", "leaderboard", "--implementations", ""), "reference", "weights")):
    offered = complete(*words)
    expect(offered, [wanted], words)
    if others in offered:
        sys.exit(f"expected no {others}, which is refused, among the completions of {words}, got {offered}")
if "--vocab-size" in complete("train", "--vocab"):
    sys.exit("expected --vocab-size to be offered for the tokenizer only")
syntax = subprocess.run([PROGRAM, "completion", "zsh"], capture_output=True, text=True, check=True)
if not syntax.stdout.startswith("autoload -U bashcompinit"):
    sys.exit(f"expected the zsh script to load bashcompinit, got {syntax.stdout[:80]!r}")
unknown = subprocess.run([PROGRAM, "completion", "fish"], capture_output=True, text=True)
if unknown.returncode != 2 or "fish" not in unknown.stderr:
    sys.exit(f"expected exit 2 and a sentence about fish, got {unknown}")
print("completion: all as expected")
