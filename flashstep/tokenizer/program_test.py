#!/usr/bin/env python3
"""`flashstep tokenizer` from the outside: round trips, and bad input with one sentence and exit code 2."""
import os
import random
import struct
import subprocess
import tempfile

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]


def run(*arguments):
    return subprocess.run([PROGRAM, "tokenizer", *map(str, arguments)], capture_output=True)


def expect_refusal(words, *arguments):
    done = run(*arguments)
    message = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2, (arguments, done)
    assert len(message) == 1, message
    for word in words:
        assert word in message[0], (word, message[0])


def npy(ids):
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(ids)},), }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(ids)}H", *ids)


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


def check_round_trip(work, text):
    done = run("train", text, "--vocab-size", 300, "--special-token", "<|a|>", "--special-token", "<|b|>",
               "--out", f"{work}/tok")
    assert done.returncode == 0 and b"273 tokens" in done.stdout, done
    rng = random.Random(1)
    data = write(f"{work}/any", bytes(rng.randrange(256) for _ in range(100_000)) + b"<|a|> <|b|>\xe5\xad")
    ids = []
    for threads in (1, 2):
        done = run("encode", data, text, "--tokenizer", f"{work}/tok", "--threads", threads, "--out", f"{work}/ids.npy")
        assert done.returncode == 0, done
        ids.append(read(f"{work}/ids.npy"))
    assert ids[0] == ids[1]
    done = run("decode", f"{work}/ids.npy", "--tokenizer", f"{work}/tok", "--out", f"{work}/back")
    assert done.returncode == 0, done
    assert read(f"{work}/back") == read(data) + read(text)
    done = run("decode", f"{work}/ids.npy", "--tokenizer", f"{work}/tok")
    assert done.stdout.decode("utf-8") == (read(data) + read(text)).decode("utf-8", errors="replace")


def check_bad_input(work, text):
    out = ["--out", f"{work}/new"]
    expect_refusal(["missing.txt"], "train", f"{work}/missing.txt", "--vocab-size", 300, *out)
    expect_refusal([work], "train", work, "--vocab-size", 300, *out)
    expect_refusal(["text", "empty"], "train", write(f"{work}/empty", b""), "--vocab-size", 300, *out)
    expect_refusal(["257", "256"], "train", text, "--vocab-size", 256, "--special-token", "<|a|>", *out)
    expect_refusal(["twice"], "train", text, "--vocab-size", 300, "--special-token", "<|a|>", "--special-token",
                   "<|a|>", *out)
    expect_refusal(["--vocab-size"], "train", text, *out)
    expect_refusal(["--thread"], "train", text, "--vocab-size", 300, "--thread", 1, *out)
    expect_refusal(["missing"], "encode", f"{work}/missing.txt", "--tokenizer", f"{work}/tok", *out)
    expect_refusal(["tokenizer.json"], "encode", text, "--tokenizer", work, *out)
    expect_refusal(["missing"], "encode", text, "--tokenizer", f"{work}/missing", *out)
    expect_refusal(["JSON"], "encode", text, "--tokenizer", write(f"{work}/bad.json", b"{\"model\""), *out)
    expect_refusal(["WordPiece"], "encode", text, "--tokenizer",
                   write(f"{work}/other.json", b'{"model": {"type": "WordPiece"}}'), *out)
    expect_refusal(["999"], "decode", write(f"{work}/beyond.npy", npy([1, 999])), "--tokenizer", f"{work}/tok", *out)
    expect_refusal(["bad.npy"], "decode", write(f"{work}/bad.npy", b"\x93NUMPY"), "--tokenizer", f"{work}/tok", *out)
    assert not os.path.exists(f"{work}/new"), "a refused command left something behind"


def main():
    with tempfile.TemporaryDirectory() as work:
        text = write(f"{work}/text.txt", "the cat sat on the mat, the cat's ü<|a|>\n".encode() * 20)
        check_round_trip(work, text)
        check_bad_input(work, text)
    print("flashstep tokenizer keeps its promises")


if __name__ == "__main__":
    main()
