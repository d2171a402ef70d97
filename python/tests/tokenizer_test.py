"""Tokenizer: ids, bytes, special tokens, files, and memory of iterables."""

import copy
import json
import os
import pickle
import signal
import subprocess
import tempfile
import threading
import tracemalloc
import unittest

import needs_torch  # noqa: F401
import torch

import flashstep

END = "<|endoftext|>"
BYTES = {number: bytes([number]) for number in range(256)}
TEXT = "Once upon a time, a cat said: don't! " * 40 + END + "漢字 and 👩‍👩‍👧‍👦 of\r\n\r\n  naïve people. " * 20


def reference_ids(tokenizer, text):
    """Merges one word after the other, the lowest rank first, on text without special tokens and of plain words."""
    ids, ranks = {token: number for number, token in tokenizer.vocab.items()}, {
        pair: rank for rank, pair in enumerate(tokenizer.merges)
    }
    result = []
    for word in [word if number == 0 else " " + word for number, word in enumerate(text.split(" "))]:
        tokens = [bytes([byte]) for byte in word.encode()]
        while True:
            pairs = [(ranks.get(pair, len(ranks)), place) for place, pair in enumerate(zip(tokens, tokens[1:]))]
            rank, place = min(pairs, default=(len(ranks), 0))
            if rank == len(ranks):
                break
            tokens[place : place + 2] = [tokens[place] + tokens[place + 1]]
        result += [ids[token] for token in tokens]
    return result


def made_of(lengths, merges=(), special_ids=()):
    """As a copy of a tokenizer is made."""
    return flashstep.Tokenizer._of_parts(
        torch.arange(256, dtype=torch.uint8), list(lengths), list(merges), list(special_ids)
    )


class Tokenizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = os.path.join(cls.folder.name, "text.txt")
        with open(cls.file, "w", encoding="utf-8", newline="") as file:
            file.write(TEXT)
        cls.trained = flashstep.Tokenizer.train(cls.file, vocab_size=300, special_tokens=[END])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_training(self):
        vocab = self.trained.vocab
        self.assertLessEqual({bytes([number]) for number in range(256)} | {END.encode()}, set(vocab.values()))
        self.assertEqual(len(vocab), len(self.trained))
        self.assertEqual(len(self.trained), 300)
        self.assertEqual(len(self.trained.merges), 300 - 257)
        self.assertEqual(self.trained.special_tokens, [END])
        again = flashstep.Tokenizer.train([self.file], vocab_size=300, special_tokens=(END,), threads=1)
        self.assertEqual(again.merges, self.trained.merges)

    def test_there_and_back(self):
        for text in ("", "a", TEXT, END, END + END, "\x00\x7f", "é" * 3):
            ids = self.trained.encode(text)
            self.assertEqual(self.trained.decode(ids), text)
            self.assertEqual(
                list(self.trained.encode_iterable([text[:5], text[5:]])),
                self.trained.encode(text[:5]) + self.trained.encode(text[5:]),
            )

    def test_ids_are_those_of_the_merges(self):
        text = "a cat said of people upon time"
        self.assertEqual(self.trained.encode(text), reference_ids(self.trained, text))
        self.assertLess(len(self.trained.encode(text)), len(text))

    def test_made_of_vocabulary_and_merges(self):
        same = flashstep.Tokenizer(self.trained.vocab, self.trained.merges, [END])
        self.assertEqual(same.encode(TEXT), self.trained.encode(TEXT))
        self.assertEqual((same.vocab, same.merges), (self.trained.vocab, self.trained.merges))

    def test_special_tokens(self):
        vocab = {**BYTES, 256: b"ab", 257: END.encode()}
        plain = flashstep.Tokenizer(vocab, [(b"a", b"b")])
        self.assertEqual(plain.encode(END), [*END.encode()])
        self.assertEqual(plain.decode([257]), END)
        double = flashstep.Tokenizer(vocab, [(b"a", b"b")], [END, END + END, "<|pad|>"])
        self.assertEqual(double.encode(END * 3 + "ab<|pad|>"), [258, 257, 256, 259])
        self.assertEqual(double.special_tokens, [END, END + END, "<|pad|>"])

    def test_bytes_that_are_no_text(self):
        plain = flashstep.Tokenizer(BYTES, [])
        self.assertEqual(plain.decode([0xC3]), "\ufffd")
        self.assertEqual(plain.decode_bytes([0xC3, 0x28]), b"\xc3(")

    def test_files(self):
        saved = os.path.join(self.folder.name, "saved")
        self.trained.save(saved)
        self.assertEqual(flashstep.Tokenizer.load(saved).encode(TEXT), self.trained.encode(TEXT))
        out = os.path.join(self.folder.name, "ids.npy")
        count = self.trained.encode_files([self.file, self.file], out)
        self.assertEqual(count, 2 * len(self.trained.encode(TEXT)))
        inputs, targets = flashstep.BatchSampler(out, batch_size=1, context_length=count - 1, order="sequential").at(0)
        self.assertEqual(inputs[0].tolist() + targets[0, -1:].tolist(), 2 * self.trained.encode(TEXT))

    def test_copies(self):
        double = flashstep.Tokenizer(BYTES, [], [END, END + END])
        for tokenizer in (self.trained, double):
            for same in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
                self.assertEqual(same.encode(TEXT + END + END), tokenizer.encode(TEXT + END + END))
                self.assertEqual((same.vocab, same.merges), (tokenizer.vocab, tokenizer.merges))
                self.assertEqual(same.special_tokens, tokenizer.special_tokens)

    def test_pattern(self):
        text, saved = os.path.join(self.folder.name, "code.txt"), os.path.join(self.folder.name, "gpt4")
        with open(text, "w", encoding="utf-8") as file:
            file.write("f(x) = 12345;\n\n    f(x)\n" * 30)
        tokenizer = flashstep.Tokenizer.train(text, vocab_size=300, pattern="gpt4", special_tokens=["<|end|>"])
        words = [tokenizer.decode_bytes([number]) for number in tokenizer.encode("f(x) = 12345;\n\n    f(x)")]
        self.assertEqual(words, [b"f", b"(x", b")", b" =", b" ", b"123", b"45", b";\n\n", b"   ", b" f", b"(x", b")"])
        self.assertEqual((tokenizer.pattern, tokenizer.ignore_merges, tokenizer.bos_token), ("gpt4", False, None))
        tokenizer.save(saved)
        again = flashstep.Tokenizer(tokenizer.vocab, tokenizer.merges, ["<|end|>"], pattern="gpt4", ignore_merges=True)
        self.assertTrue(again.ignore_merges)
        for same in (flashstep.Tokenizer.load(saved), pickle.loads(pickle.dumps(tokenizer)), again):
            self.assertEqual((same.pattern, same.encode("f(x) 99")), ("gpt4", tokenizer.encode("f(x) 99")))
        with self.assertRaisesRegex(ValueError, 'expected the pattern gpt2 or gpt4, got "gpt3"'):
            flashstep.Tokenizer.train(text, vocab_size=300, pattern="gpt3")

    def test_split_digits(self):
        digits = os.path.join(self.folder.name, "digits.txt")
        with open(digits, "w", encoding="utf-8") as file:
            file.write("in 1984 and 1985, " * 50)
        split = flashstep.Tokenizer.train(digits, vocab_size=280, split_digits=True)
        plain = flashstep.Tokenizer.train(digits, vocab_size=280)
        self.assertEqual((split.split_digits, plain.split_digits), (True, False))
        self.assertIn(b" 198", plain.vocab.values())
        split.save(os.path.join(self.folder.name, "split"))
        for same in (
            split,
            pickle.loads(pickle.dumps(split)),
            flashstep.Tokenizer.load(os.path.join(self.folder.name, "split")),
            flashstep.Tokenizer(split.vocab, split.merges, split_digits=True),
        ):
            self.assertTrue(same.split_digits)
            self.assertEqual([same.vocab[number] for number in same.encode("1984")], [b"1", b"9", b"8", b"4"])

    def test_bytes_without_a_token_are_left_out(self):
        path = os.path.join(self.folder.name, "few.json")
        added = [{"id": 3, "content": END}]
        with open(path, "w") as file:
            model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, END: 3}, "merges": [["a", "b"]]}
            json.dump({"model": model, "pre_tokenizer": {"type": "ByteLevel"}, "added_tokens": added}, file)
        few = flashstep.Tokenizer.load(path)
        for same in (few, copy.deepcopy(few)):
            self.assertEqual(same.encode("axb" + END), [2, 3])
            self.assertEqual(same.missing_bytes, 254)
        self.assertEqual(self.trained.missing_bytes, 0)
        with self.assertRaisesRegex(ValueError, "a token for each of the 256 bytes"):
            flashstep.Tokenizer(few.vocab, few.merges, few.special_tokens)

    def test_a_text_is_not_replaced_by_its_tokens(self):
        link = os.path.join(self.folder.name, "link.npy")
        os.symlink(self.file, link)
        for out in (self.file, link):
            with self.assertRaisesRegex(ValueError, "expected to write another file than"):
                self.trained.encode_files([self.file], out)
        with open(self.file, encoding="utf-8", newline="") as file:
            self.assertEqual(file.read(), TEXT)

    def test_the_program_reads_what_was_saved(self):
        program = os.environ.get("FLASHSTEP_PROGRAM", "")
        if not os.path.exists(program):
            self.skipTest("the program is not built")
        saved, out = os.path.join(self.folder.name, "for_program"), os.path.join(self.folder.name, "program.npy")
        self.trained.save(saved)
        subprocess.run(
            [program, "tokenizer", "encode", self.file, "--tokenizer", saved, "--out", out],
            check=True,
            capture_output=True,
        )
        length = len(self.trained.encode(TEXT)) - 1
        inputs, _ = flashstep.BatchSampler(out, batch_size=1, context_length=length, order="sequential").at(0)
        self.assertEqual(inputs[0].tolist(), self.trained.encode(TEXT)[:-1])
        with open(os.path.join(saved, "vocab.json"), encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)), len(self.trained))

    def test_an_iterable_is_not_held(self):
        large = os.path.join(self.folder.name, "large.txt")
        with open(large, "w", encoding="utf-8") as file:
            for _ in range(50_000):
                file.write("Once upon a time, a cat said: don't!\n")
        tracemalloc.start()
        with open(large, encoding="utf-8") as file:
            count = sum(1 for _ in self.trained.encode_iterable(file))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.assertGreater(count, 500_000)
        self.assertLess(peak, 1_000_000)

    def test_ctrl_c_ends_long_work(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        large, out = os.path.join(self.folder.name, "long.txt"), os.path.join(self.folder.name, "long.npy")
        with open(large, "w", encoding="utf-8") as file:
            for number in range(1_500_000):
                file.write(f"{number * 7919} {number ^ 0x5bd1e995} ")
        for work in (
            lambda: flashstep.Tokenizer.train(large, vocab_size=50_000, threads=1),
            lambda: self.trained.encode_files(large, out, threads=1),
        ):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                work()
        self.assertFalse(os.path.exists(out))

    def test_mistakes_are_sentences(self):
        for call, text in (
            (lambda: flashstep.Tokenizer({1: b"a"}, []), "expected ids 0 to 0"),
            (lambda: flashstep.Tokenizer({0: b"a"}, []), "expected"),
            (lambda: flashstep.Tokenizer(BYTES, [(b"a", b"b")]), "where b'ab' is none"),
            (lambda: self.trained.decode([300]), r"expected ids in \[0, 300\), got 300"),
            (lambda: self.trained.decode([-1]), "got -1"),
            (lambda: flashstep.Tokenizer.train("/nonexistent", vocab_size=300), "nonexistent"),
            (lambda: flashstep.Tokenizer.train(self.file, vocab_size=100), "100"),
            (lambda: flashstep.Tokenizer.load(self.file), "expected"),
            (lambda: self.trained.encode(b"abc"), "expected a text"),
            (lambda: self.trained.encode("a\ud800b"), "surrogates"),
            (lambda: made_of([1] * 255 + [-1, 2]), "lengths of tokens of at least 0, got -1"),
            (lambda: made_of([1] * 256 + [1]), "tokens of 256 bytes together, got lengths of more"),
            (lambda: made_of([2**63 - 1] * 2), "tokens of 256 bytes together, got lengths of more"),
            (lambda: made_of([1] * 255), "tokens of 256 bytes together, got lengths of 255"),
            (lambda: made_of([1] * 256, [0, 256]), "names a token beyond the vocabulary"),
            (lambda: made_of([1] * 256, [], [256]), "special"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                call()


if __name__ == "__main__":
    unittest.main()
