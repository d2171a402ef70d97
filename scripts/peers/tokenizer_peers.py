#!/usr/bin/env python3
"""The PyPI packages tokenizers and tiktoken on the texts of `flashstep bench tokenizer`.

    tokenizer_peers.py train TEXT VOCAB_SIZE THREADS OUT_JSON PATTERN      tokenizers
    tokenizer_peers.py encode TEXT TOKENIZER_DIR THREADS OUT_IDS PATTERN   tiktoken; ids as raw uint32
    tokenizer_peers.py versions

Prints one line: the seconds of the work alone (reading the text is outside of encoding, inside of training,
as in ours), or the versions. Exits with 77 when a package is missing.
"""
import json
import os
import sys
import time

PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+"}
SPECIAL = "<|endoftext|>"


def train(text, vocab_size, threads, out, pattern):
    os.environ["RAYON_NUM_THREADS"] = threads
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern != "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=int(vocab_size), special_tokens=[SPECIAL], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    start = time.perf_counter()
    tokenizer.train([text], trainer)
    seconds = time.perf_counter() - start
    tokenizer.save(out)
    return seconds


def cut(content, size):
    """Pieces of about `size` characters, cut where that changes no token: before a line end behind a word."""
    pieces, begin = [], 0
    while begin < len(content):
        end = content.find("\n", begin + size)
        while end > 0 and not content[end - 1].isalnum():
            end = content.find("\n", end + 1)
        end = len(content) if end < 0 else end
        pieces.append(content[begin:end])
        begin = end
    return pieces


def encode(text, folder, threads, out, pattern):
    import numpy
    import tiktoken
    with open(f"{folder}/vocab.json", encoding="utf-8") as file:
        vocab = json.load(file)
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = own + [byte for byte in range(256) if byte not in own]
    byte_of = {chr(byte if i < len(own) else 256 + i - len(own)): byte for i, byte in enumerate(order)}
    ranks = {bytes(byte_of[c] for c in token): id for token, id in vocab.items() if token != SPECIAL}
    encoding = tiktoken.Encoding("ours", pat_str=PATTERNS[pattern], mergeable_ranks=ranks,
                                 special_tokens={SPECIAL: vocab[SPECIAL]})
    with open(text, encoding="utf-8", newline="") as file:
        content = file.read()
    threads = int(threads)
    pieces = [content] if threads == 1 else cut(content, 100_000)
    start = time.perf_counter()
    if threads == 1:
        parts = [encoding.encode(content, allowed_special="all")]
    else:
        parts = encoding.encode_batch(pieces, num_threads=threads, allowed_special="all")
    seconds = time.perf_counter() - start
    numpy.concatenate([numpy.array(part, dtype=numpy.uint32) for part in parts]).tofile(out)
    return seconds


def versions():
    import tiktoken
    import tokenizers
    return f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}"


if __name__ == "__main__":
    try:
        print({"train": train, "encode": encode, "versions": versions}[sys.argv[1]](*sys.argv[2:]))
    except ImportError as error:
        print(f"the Python package {error.name} is not there", file=sys.stderr)
        sys.exit(77)
