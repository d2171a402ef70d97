#!/usr/bin/env python3
"""`flashstep tokenizer` from the outside: round trips, and bad input with one sentence and exit code 2."""
import os
import random
import signal
import struct
import subprocess
import tempfile
import time

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


def check_pipes_and_full_disks(work, text):
    """What has no size is refused rather than taken for empty; output that is lost is a failure."""
    arguments = ["encode", "/dev/stdin", "--tokenizer", f"{work}/tok", "--out", f"{work}/new"]
    done = subprocess.run([PROGRAM, "tokenizer", *arguments], input=b"the cat", capture_output=True)
    assert done.returncode == 2 and b"regular file" in done.stderr, done
    assert run("encode", text, "--tokenizer", f"{work}/tok", "--out", f"{work}/ids.npy").returncode == 0
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PROGRAM, "tokenizer", "decode", f"{work}/ids.npy", "--tokenizer", f"{work}/tok"],
                              stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"No space left" in done.stderr, done


def check_progress(work):
    """The words are counted, and said to be, before the merges are learnt."""
    text = write(f"{work}/long.txt", b"the cat sat on the mat again. " * 150_000)  # more than one piece
    done = run("train", text, "--vocab-size", 270, "--threads", 1, "--out", f"{work}/long")
    assert done.returncode == 0, done
    labels = [line.split(b" %")[0] for line in done.stderr.splitlines()]
    counted = [at for at, label in enumerate(labels) if label.startswith(b"counting words")]
    learnt = [at for at, label in enumerate(labels) if label.startswith(b"learning merges")]
    assert counted and learnt and max(counted) < min(learnt), done.stderr
    assert labels[max(counted)] == b"counting words 100", done.stderr


def check_signals(work):
    """Stopped in the middle: one sentence, 128 + signal, and nothing is left."""
    size = 200_000_000
    big = write(f"{work}/big.txt", b"")
    with open(big, "wb") as file:
        for _ in range(size // 1_000_000):
            file.write(b"the cat sat on the mat again. " * 33_334)
    os.mkdir(f"{work}/out")
    for code in (signal.SIGINT, signal.SIGTERM):
        for arguments in (["encode", big, "--tokenizer", f"{work}/tok", "--threads", "1", "--out", f"{work}/out/ids.npy"],
                          ["train", big, "--vocab-size", "300", "--threads", "1", "--out", f"{work}/out/tok"]):
            process = subprocess.Popen([PROGRAM, "tokenizer", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            deadline = time.time() + 60
            while time.time() < deadline and process.poll() is None:  # until the text is mapped: it is being read then
                with open(f"/proc/{process.pid}/maps") as maps:
                    if big in maps.read():
                        break
            process.send_signal(code)
            errors = process.communicate(timeout=60)[1].decode().strip().splitlines()
            assert process.returncode == 128 + code, (process.returncode, errors)
            assert "interrupted" in errors[-1], errors
            assert os.listdir(f"{work}/out") == [], os.listdir(f"{work}/out")


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
    check_printed(work, read(data) + read(text))
    # Where a piece of 65,536 tokens ends, characters and half ones are what they are.
    for end in ("😀".encode(), "😀".encode() + b"\x80", "😀".encode()[:3], b"\x80" * 5, "é😀".encode()[:-1]):
        for at in range(len(end) + 1):
            check_printed(work, b"~" * (65_536 - at) + end + b"~")


def check_printed(work, data):
    done = run("encode", write(f"{work}/printed", data), "--tokenizer", f"{work}/tok", "--out", f"{work}/printed.npy")
    assert done.returncode == 0, done
    done = run("decode", f"{work}/printed.npy", "--tokenizer", f"{work}/tok")
    assert done.stdout.decode("utf-8") == data.decode("utf-8", errors="replace"), (data[-9:], done.stdout[-20:])


def check_bad_input(work, text):
    out = ["--out", f"{work}/new"]
    expect_refusal(["missing.txt"], "train", f"{work}/missing.txt", "--vocab-size", 300, *out)
    expect_refusal([work], "train", work, "--vocab-size", 300, *out)
    expect_refusal(["text", "empty"], "train", write(f"{work}/empty", b""), "--vocab-size", 300, *out)
    expect_refusal(["257", "256"], "train", text, "--vocab-size", 256, "--special-token", "<|a|>", *out)
    expect_refusal(["encode", "empty"], "encode", f"{work}/empty", "--tokenizer", f"{work}/tok", *out)
    expect_refusal(["directory"], "encode", text, "--tokenizer", f"{work}/tok", "--out", work)
    expect_refusal(["no", "missing"], "encode", text, "--tokenizer", f"{work}/tok", "--out", f"{work}/missing/x.npy")
    expect_refusal(["read"], "encode", text, "--tokenizer", f"{work}/tok", "--out", text)
    expect_refusal(["directory"], "train", text, "--vocab-size", 300, "--out", text)
    for nested in (b"[" * 1_000_000, b'{"model":{"type":"BPE","merges":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}"):
        expect_refusal(["nested"], "encode", text, "--tokenizer", write(f"{work}/nested.json", nested), *out)
    expect_refusal(["trian", "train"], "trian", text)
    expect_refusal(["--vocab-size", "whole number", "abc"], "train", text, "--vocab-size", "abc", *out)
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
        check_pipes_and_full_disks(work, text)
        check_progress(work)
        check_signals(work)
    print("flashstep tokenizer keeps its promises")


if __name__ == "__main__":
    main()
