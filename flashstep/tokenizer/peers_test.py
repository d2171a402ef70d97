#!/usr/bin/env python3
"""Our tokenizer files and ids against the PyPI packages tokenizers and tiktoken, on hard text."""
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import numpy
    import tiktoken
    import tokenizers
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
except ImportError as error:
    print(f"SKIPPED: the Python package {error.name} is not there")
    sys.exit(77)

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
# GPT-2's, GPT-4's (cl100k_base, also Llama 3's), and that with single digits (Qwen 2's).
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
PATTERNS = {"gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "gpt4": GPT4,
            "qwen2": GPT4.replace("{1,3}", "")}
END = "<|endoftext|>"
SPECIALS = [END, "<|end|>", "<|end", "<|end|><|end|>", "\n\n\n", "<|漢 字|>"]
PIECES = ["a", "The", " cat", "don't", "'LL", "'ll", "'s", "'\u017f", "(x", "\n  ", " \n", "12345", "ß", "é", "e\u0301", "漢字", "字", "ไทย", "हिन्दी",
          "👩‍👩‍👧‍👦", "🇩🇪", "😀", "\u200d", "1", "²", "½", "Ⅷ", "٣", "0x1F", "!", "...", "'", "''", " ", "  ", "\t",
          " " * 70, "\n", "\r\n", "\u00a0", "\u3000", "\u2003\u2003", "\u1680", "\u0085", "\u200b", "\x00", "\x01",
          "\x1c", "\x7f", "\u180e", "\ufeff", "\ufffd", "\U0010ffff", "<|", "|>", "_", "def f(x):\n    return x"]


def flashstep(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Ours:
    def __init__(self, folder):
        self.folder = folder

    def encode(self, text, is_whole=True):
        data = text if isinstance(text, bytes) else text.encode()
        with tempfile.TemporaryDirectory() as work:
            with open(f"{work}/text", "wb") as file:
                file.write(data)
            flashstep("tokenizer", "encode", f"{work}/text", "--tokenizer", self.folder, "--out",
                      f"{work}/ids.npy", "--threads", 2)
            flashstep("tokenizer", "decode", f"{work}/ids.npy", "--tokenizer", self.folder, "--out",
                      f"{work}/back")
            with open(f"{work}/back", "rb") as file:
                assert not is_whole or file.read() == data, "decode(encode(text)) differs from text"
            return numpy.load(f"{work}/ids.npy").tolist()


def pre_tokenizer(kind):
    """tokenizers' for gpt2, digits (split ones before GPT-2's words), gpt4 or qwen2."""
    parts = tokenizers.pre_tokenizers
    words = parts.ByteLevel(add_prefix_space=False, use_regex=kind in ("gpt2", "digits"))
    if kind == "gpt2":
        return words
    if kind == "digits":
        return parts.Sequence([parts.Digits(individual_digits=True), words])
    return parts.Sequence([parts.Split(tokenizers.Regex(PATTERNS[kind]), "isolated"), words])


def options_of(kind):
    return {"gpt2": [], "digits": ["--split-digits"], "gpt4": ["--pattern", "gpt4"],
            "qwen2": ["--pattern", "gpt4", "--split-digits"]}[kind]


def as_tiktoken(folder, specials, kind):
    """tiktoken's own reader of GPT-2 files, with `specials` of ours."""
    with open(f"{folder}/vocab.json", encoding="utf-8") as file:
        vocab = json.load(file)
    plain = {token: id for token, id in vocab.items() if token not in SPECIALS}
    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/vocab.json", "w", encoding="utf-8") as file:
            json.dump(plain, file)
        os.environ["TIKTOKEN_CACHE_DIR"] = ""
        ranks = data_gym_to_mergeable_bpe_ranks(f"{folder}/merges.txt", f"{work}/vocab.json")
    return tiktoken.Encoding("ours", pat_str=PATTERNS[kind], mergeable_ranks=ranks,
                             special_tokens={token: vocab[token] for token in specials})


def hard_text(rng, pieces, specials):
    return "".join(rng.choice(PIECES + specials) for _ in range(pieces))


def train(work, rng, kind):
    with open(f"{work}/train.txt", "w", encoding="utf-8", newline="") as file:
        file.write(hard_text(rng, 20_000, SPECIALS))
    arguments = [word for token in SPECIALS for word in ("--special-token", token)]
    flashstep("tokenizer", "train", f"{work}/train.txt", "--vocab-size", 1500, "--out", f"{work}/{kind}", *arguments,
              *options_of(kind))
    return f"{work}/{kind}"


def check_hard_text(work, rng, kind):
    folder = train(work, rng, kind)
    ours = Ours(folder)
    whole = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    parts = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
    parts.pre_tokenizer = pre_tokenizer(kind)
    # tiktoken tries special tokens in no promised order, so it gets only one of those that overlap.
    tik = as_tiktoken(folder, [END], kind)
    for length in (1, 2, 3, 100, 20_000):
        text = hard_text(rng, length, SPECIALS)
        ids = ours.encode(text)
        assert ids == whole.encode(text).ids, f"tokenizers differs on {text!r}"
        assert whole.decode(ids, skip_special_tokens=False) == text
        text = hard_text(rng, length, [])
        while any(special in text for special in SPECIALS):
            text = text.replace("\n\n\n", "\n").replace("<|end", "")
        ids = ours.encode(text)
        assert ids == parts.encode(text).ids, f"tokenizers differs on {text!r}"
        assert ids == tik.encode_ordinary(text), f"tiktoken differs on {text!r}"
        text = hard_text(rng, length, [END]).replace("\n\n\n", "\n")
        assert ours.encode(text) == tik.encode(text, allowed_special={END}), f"tiktoken differs on {text!r}"


def check_their_file(work, rng, kind, alphabet):
    """A tokenizer.json trained and written by tokenizers, with its own order of ids. Without the whole alphabet bytes
    that its text does not have are left out."""
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = pre_tokenizer(kind)
    peer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1200, special_tokens=SPECIALS, show_progress=False,
                                             initial_alphabet=alphabet)
    peer.train([f"{work}/train.txt"], trainer)
    if kind == "gpt4":  # as Llama 3's
        bos = peer.token_to_id("<|end|>")
        peer.post_processor = tokenizers.processors.Sequence([
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(single="<|end|> $A", pair="<|end|> $A <|end|>:1 $B:1",
                                                     special_tokens=[("<|end|>", bos)])])
    peer.save(f"{work}/theirs.json")
    if kind == "gpt4":
        check_ignored_merges(work, rng)
    text = hard_text(rng, 20_000, SPECIALS)
    ours = Ours(f"{work}/theirs.json")
    assert ours.encode(text) == peer.encode(text, add_special_tokens=False).ids
    if not alphabet:
        text = text.replace("a", "\U000F1234a").replace("c", "\x05c")
        assert ours.encode(text, is_whole=False) == peer.encode(text).ids
        return
    flashstep("tokenizer", "train", f"{work}/train.txt", "--vocab-size", 1500, "--out", f"{work}/plain",
              *options_of(kind))
    ids = Ours(f"{work}/plain").encode(text)
    assert ids == tokenizers.Tokenizer.from_file(f"{work}/plain/tokenizer.json").encode(text).ids


def check_ignored_merges(work, rng):
    """As Llama 3's: words that are tokens are not merged. Without some merges more of them show it."""
    with open(f"{work}/theirs.json", encoding="utf-8") as file:
        content = json.load(file)
    content["model"]["ignore_merges"] = True
    content["model"]["merges"] = content["model"]["merges"][::2]
    with open(f"{work}/ignoring.json", "w", encoding="utf-8") as file:
        json.dump(content, file)
    peer = tokenizers.Tokenizer.from_file(f"{work}/ignoring.json")
    text = hard_text(rng, 20_000, SPECIALS)
    ids = Ours(f"{work}/ignoring.json").encode(text)
    assert ids == peer.encode(text, add_special_tokens=False).ids
    peer.model.ignore_merges = False
    assert ids != peer.encode(text, add_special_tokens=False).ids, "no word shows it"


def check_every_code_point(work):
    """A vocabulary whose only merges join a byte to one of three neighbours shows where words begin."""
    neighbours = [ord(c) for c in "x1!"]
    alphabet = as_bytes_alphabet()
    pairs = list(dict.fromkeys((a, b) for n in neighbours for byte in range(256) for a, b in ((n, byte), (byte, n))))
    vocab = {alphabet[byte]: i for i, byte in enumerate(bytes_in_order())}
    for a, b in pairs:
        vocab[alphabet[a] + alphabet[b]] = len(vocab)
    folder = f"{work}/pairs"
    os.mkdir(folder)
    with open(f"{folder}/vocab.json", "w", encoding="utf-8") as file:
        json.dump(vocab, file)
    with open(f"{folder}/merges.txt", "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{alphabet[a]} {alphabet[b]}\n" for a, b in pairs))
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    # Each text ends in a byte that is a word in any: their ids, joined, are those of the whole.
    texts = ["".join(f"x{c}1{c}!{c}1'{c}x" for c in points[i:i + 4096]) + "\n" for i in range(0, len(points), 4096)]
    # With split digits tokenizers finds Unicode 17's, too: those are left out.
    newer = str.maketrans({code: "y" for code in [*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)]})
    peer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
    for kind in ("gpt2", "digits", "gpt4"):
        known = {"digits": [text.translate(newer) for text in texts], "gpt4": texts[:48]}.get(kind, texts)  # to U+2FFFF
        peer.pre_tokenizer = pre_tokenizer(kind)
        peer.save(f"{folder}/tokenizer.json")
        ours = Ours(folder).encode("".join(known))
        ids = [id for encoding in peer.encode_batch(known) for id in encoding.ids]
        assert ours == ids, f"{kind}: tokenizers sees another class for some code point"
        if kind == "digits":
            continue
        tik = as_tiktoken(folder, [], kind)
        ids = [id for part in tik.encode_ordinary_batch(known, num_threads=2) for id in part]
        assert ours == ids, f"{kind}: tiktoken sees another class for some code point"


def bytes_in_order():
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return own + [byte for byte in range(256) if byte not in own]


def as_bytes_alphabet():
    order = bytes_in_order()
    return {byte: chr(byte if i < 188 else 256 + i - 188) for i, byte in enumerate(order)}


def check_any_bytes(work, rng):
    ours = Ours(f"{work}/gpt4")
    for length in (1, 10, 100_000):
        ours.encode(bytes(rng.randrange(256) for _ in range(length)))


def main():
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as work:
        for kind in PATTERNS:
            check_hard_text(work, rng, kind)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        for kind in ("gpt2", "digits", "gpt4", "qwen2"):
            check_their_file(work, rng, kind, alphabet)
        check_their_file(work, rng, "digits", [])
        check_any_bytes(work, rng)
        check_every_code_point(work)
    print(f"the same ids as tokenizers {tokenizers.__version__} and tiktoken {tiktoken.__version__}")


if __name__ == "__main__":
    main()
