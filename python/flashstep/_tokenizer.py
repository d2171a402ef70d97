"""Byte-level BPE with GPT-2's or GPT-4's words: text to token ids and back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Union

import torch

from ._library import classes

Path = Union[str, "os.PathLike[str]"]


def paths_of(files: Path | Iterable[Path]) -> list[str]:
    """One path or several, as texts."""
    return [os.fspath(files)] if isinstance(files, (str, os.PathLike)) else [os.fspath(file) for file in files]


def _bytes_of(tensor: torch.Tensor) -> bytes:  # (n) uint8 on the CPU
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


class Tokenizer:
    """vocab: bytes of each token, by ids 0, 1, ...; all 256 single bytes are among them. merges: pairs of tokens in
    the order of ranks. special_tokens: texts that are never split, each a token of vocab, or added behind it; of
    several at one place the longest counts. Other tokens that no merge makes, <|endoftext|> for one, are ordinary
    text, though they decode. pattern: how text is cut into words, across which nothing merges, gpt2's or gpt4's
    (Llama 3's). split_digits: every digit is a word of its own. ignore_merges: a word that is a token is that one,
    whatever merges make of it."""

    def __init__(
        self,
        vocab: dict[int, bytes],
        merges: list[tuple[bytes, bytes]],
        special_tokens: list[str] | None = None,
        *,
        pattern: str = "gpt2",
        split_digits: bool = False,
        ignore_merges: bool = False,
    ) -> None:
        if sorted(vocab) != list(range(len(vocab))):
            raise ValueError(f"[tokenizer] expected ids 0 to {len(vocab) - 1} in vocab, got {len(vocab)} others")
        tokens = [bytes(vocab[number]) for number in range(len(vocab))]
        ids = {token: number for number, token in enumerate(tokens)}
        special_ids = []
        for text in dict.fromkeys(special_tokens or ()):
            token = text.encode()
            if token not in ids:
                ids[token] = len(tokens)
                tokens.append(token)
            special_ids.append(ids[token])
        for pair in merges:
            for token in (*pair, pair[0] + pair[1]):
                if token not in ids:
                    raise ValueError(
                        "[tokenizer] expected merges of tokens to tokens of vocab, "
                        f"got {pair!r}, where {token!r} is none"
                    )
        joined = b"".join(tokens)
        self._engine = classes.Tokenizer(
            torch.frombuffer(bytearray(joined), dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8),
            [len(token) for token in tokens],
            [ids[token] for pair in merges for token in pair],
            sorted(special_ids),
            split_digits,
            False,
            pattern,
            ignore_merges,
            -1,
            [],
        )

    @classmethod
    def _of(cls, engine: Any) -> Tokenizer:
        made = cls.__new__(cls)
        made._engine = engine
        return made

    @classmethod
    def _of_parts(cls, *parts: Any) -> Tokenizer:
        later: tuple[Any, ...] = (False, False, "gpt2", False, -1, [])  # what copies of earlier versions do not have
        return cls._of(classes.Tokenizer(*parts, *later[len(parts) - 4 :]))

    def __reduce__(self) -> Any:  # copies, and other processes, get the same
        return self._of_parts, tuple(self._parts)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """GPT-2's vocab.json and merges.txt or Hugging Face's tokenizer.json: a folder, or one of the files. Only
        tokenizer.json knows split digits and patterns. It may lack tokens for some bytes, which encode leaves out."""
        return cls._of(classes.Tokenizer.load(os.fspath(path)))

    @classmethod
    def train(
        cls,
        files: Path | Iterable[Path],
        *,
        vocab_size: int,
        special_tokens: Iterable[str] = (),
        pattern: str = "gpt2",
        split_digits: bool = False,
        threads: int = 0,
    ) -> Tokenizer:
        """Learns merges from text files until there are vocab_size tokens: 256 bytes, merges, special tokens. Of
        equally frequent pairs the greater one is merged first. With split_digits every digit is a token of its own.
        threads 0: all processors; the result does not depend on it."""
        return cls._of(
            classes.Tokenizer.train(paths_of(files), vocab_size, list(special_tokens), pattern, split_digits, threads)
        )

    def save(self, directory: Path) -> None:
        """Writes all three files into a folder that is created; the program reads it, too."""
        self._engine.save(os.fspath(directory))

    def encode(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise ValueError(f"[tokenizer] expected a text (str), got {text!r}")
        try:
            return self._engine.encode(text)
        except RuntimeError:
            text.encode()  # half of a surrogate pair: Python's own sentence, a ValueError
            raise

    def encode_iterable(self, texts: Iterable[str]) -> Iterator[int]:
        """The ids of texts one after the other, of which one is held at a time: a file gives its lines."""
        for text in texts:
            yield from self.encode(text)

    def encode_files(self, files: Path | Iterable[Path], out: Path, *, threads: int = 0) -> int:
        """Encodes text files into a token file (.npy), none of them, and returns the number of tokens. Memory does
        not grow with the files. OUT.manifest.json beside it names the tokenizer, which `eval` and training ask for."""
        return self._engine.encode_files(paths_of(files), os.fspath(out), threads)

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return _bytes_of(self._engine.decode(list(ids)))

    def __len__(self) -> int:
        return len(self._tokens)

    @cached_property
    def _parts(self) -> Any:
        """Tokens' bytes one behind the other, their lengths, the ids of merges' pairs, those of special tokens, whether
        digits are split, whether some bytes have no token, the pattern, ignore_merges, and the id of bos_token."""
        return self._engine.parts()

    @cached_property
    def _tokens(self) -> list[bytes]:
        joined, lengths = self._parts[:2]
        every, begin, tokens = _bytes_of(joined), 0, []
        for length in lengths:
            tokens.append(every[begin : begin + length])
            begin += length
        return tokens

    @cached_property
    def vocab(self) -> dict[int, bytes]:
        return dict(enumerate(self._tokens))

    @cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """In the order of ranks."""
        ids = self._parts[2]
        return [(self._tokens[left], self._tokens[right]) for left, right in zip(ids[::2], ids[1::2])]

    @cached_property
    def special_tokens(self) -> list[str]:
        """By id."""
        return [self._tokens[number].decode() for number in self._parts[3]]

    @property
    def split_digits(self) -> bool:
        return self._parts[4]

    @property
    def pattern(self) -> str:
        """gpt2 or gpt4."""
        return self._parts[6]

    @property
    def ignore_merges(self) -> bool:
        return self._parts[7]

    @property
    def bos_token(self) -> str | None:
        """The special token that Hugging Face's tokenizers put before each text. encode does not: a text has it."""
        number = self._parts[8]
        return None if number < 0 else self._tokens[number].decode()

    @property
    def missing_bytes(self) -> int:
        """Of the 256 bytes those without a token."""
        return 256 - sum(len(token) == 1 for token in self._tokens)
