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
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
END = "<|endoftext|>"
SPECIALS = [END, "<|end|>", "<|end", "<|end|><|end|>", "\n\n\n", "<|漢 字|>"]
PIECES = ["a", "The", " cat", "don't", "'LL", "'ll", "'s", "ß", "é", "e\u0301", "漢字", "字", "ไทย", "हिन्दी",
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


def as_tiktoken(folder, specials):
    """tiktoken's own reader of GPT-2 files, with `specials` of ours."""
    with open(f"{folder}/vocab.json", encoding="utf-8") as file:
        vocab = json.load(file)
    plain = {token: id for token, id in vocab.items() if token not in SPECIALS}
    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/vocab.json", "w", encoding="utf-8") as file:
            json.dump(plain, file)
        os.environ["TIKTOKEN_CACHE_DIR"] = ""
        ranks = data_gym_to_mergeable_bpe_ranks(f"{folder}/merges.txt", f"{work}/vocab.json")
    return tiktoken.Encoding("ours", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={token: vocab[token] for token in specials})


def hard_text(rng, pieces, specials):
    return "".join(rng.choice(PIECES + specials) for _ in range(pieces))


def train(work, rng):
    with open(f"{work}/train.txt", "w", encoding="utf-8", newline="") as file:
        file.write(hard_text(rng, 20_000, SPECIALS))
    arguments = [word for token in SPECIALS for word in ("--special-token", token)]
    flashstep("tokenizer", "train", f"{work}/train.txt", "--vocab-size", 1500, "--out", f"{work}/ours", *arguments)
    return f"{work}/ours"


def check_hard_text(work, rng):
    folder = train(work, rng)
    ours = Ours(folder)
    whole = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    parts = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
    parts.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    # tiktoken tries special tokens in no promised order, so it gets only one of those that overlap.
    tik = as_tiktoken(folder, [END])
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


def check_their_file(work, rng, split_digits, alphabet):
    """A tokenizer.json trained and written by tokenizers, with its own order of ids. Without the whole alphabet bytes
    that its text does not have are left out."""
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, words]) if split_digits else words
    peer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1200, special_tokens=SPECIALS, show_progress=False,
                                             initial_alphabet=alphabet)
    peer.train([f"{work}/train.txt"], trainer)
    peer.save(f"{work}/theirs.json")
    text = hard_text(rng, 20_000, SPECIALS)
    ours = Ours(f"{work}/theirs.json")
    assert ours.encode(text) == peer.encode(text).ids
    if not alphabet:
        text = text.replace("a", "\U000F1234a").replace("c", "\x05c")
        assert ours.encode(text, is_whole=False) == peer.encode(text).ids
        return
    flashstep("tokenizer", "train", f"{work}/train.txt", "--vocab-size", 1500, "--out", f"{work}/digits",
              *(["--split-digits"] if split_digits else []))
    ids = Ours(f"{work}/digits").encode(text)
    assert ids == tokenizers.Tokenizer.from_file(f"{work}/digits/tokenizer.json").encode(text).ids


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
    texts = ["".join(f"x{c}1{c}!{c}" for c in points[i:i + 4096]) + "\n" for i in range(0, len(points), 4096)]
    ours = Ours(folder).encode("".join(texts))
    # Each text ends in a byte that nothing merges with: their ids, joined, are those of the whole.
    peer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = [id for encoding in peer.encode_batch(texts) for id in encoding.ids]
    assert ours == ids, "tokenizers sees another class for some code point"
    ids = [id for part in as_tiktoken(folder, []).encode_ordinary_batch(texts, num_threads=2) for id in part]
    assert ours == ids, "tiktoken sees another class for some code point"
    check_digits(folder, texts, peer)


def check_digits(folder, texts, peer):
    """The same with split digits, of which tokenizers finds Unicode 17's too: those are left out."""
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, peer.pre_tokenizer])
    peer.save(f"{folder}/tokenizer.json")
    newer = [*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)]
    for code in newer:
        texts = [text.replace(chr(code), "y") for text in texts]
    ids = [id for encoding in peer.encode_batch(texts) for id in encoding.ids]
    assert Ours(folder).encode("".join(texts)) == ids, "tokenizers sees another digit for some code point"


def bytes_in_order():
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return own + [byte for byte in range(256) if byte not in own]


def as_bytes_alphabet():
    order = bytes_in_order()
    return {byte: chr(byte if i < 188 else 256 + i - 188) for i, byte in enumerate(order)}


def check_any_bytes(work, rng):
    ours = Ours(f"{work}/ours")
    for length in (1, 10, 100_000):
        ours.encode(bytes(rng.randrange(256) for _ in range(length)))


def main():
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as work:
        check_hard_text(work, rng)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        for split_digits in (False, True):
            check_their_file(work, rng, split_digits, alphabet)
        check_their_file(work, rng, True, [])
        check_any_bytes(work, rng)
        check_every_code_point(work)
    print(f"the same ids as tokenizers {tokenizers.__version__} and tiktoken {tiktoken.__version__}")


if __name__ == "__main__":
    main()
