"""Texts and other sequences as datasets: tokens of texts, padding, and labels of the next tokens."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.datasets.dataset import Dataset
from fedprivjax.problem.raw_rows import RawRows

CHARACTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's, of Shakespeare
)
CODES = 0x110000  # of characters


def encode(texts: Sequence[str], vocabulary: str | Sequence[str] = CHARACTERS, length: int = 80) -> np.ndarray:
    """Return texts as sequences of tokens (integers), int32, shape [texts, length].

    For a vocabulary of V words or characters, the tokens 0 … V − 1 stand for the vocabulary's entries in their order.
    Token V stands for any other word or character. A text shorter than `length` is filled up with the padding token V +
    1. A longer text is cut off.

    Args:
        texts: texts to encode.
        vocabulary: public characters as one text, or a list of words. With words, texts are split at white space. The
            default is the 80 characters of LEAF's dataset of Shakespeare's plays, in LEAF's order.
        length: number of tokens of each row.

    >>> encode(["to be", "ß"], "abet ", 6).tolist()
    [[3, 5, 4, 1, 2, 6], [5, 6, 6, 6, 6, 6]]
    >>> encode(["to be or not"], ["be", "to"], 3).tolist()
    [[1, 0, 2]]
    """
    require_at_least("length", length, 1)
    if not vocabulary or len(set(vocabulary)) < len(vocabulary):
        raise Refusal(
            f"vocabulary must have different entries, got {len(vocabulary)} of which {len(set(vocabulary))} differ"
        )
    known = len(vocabulary)
    if not isinstance(vocabulary, str):
        index = {word: token for token, word in enumerate(vocabulary)}
        return _padded(
            [[index.get(word, known) for word in text.split()[:length]] for text in texts], length, known + 1
        )
    of_code = np.full(CODES, known, np.int32)
    of_code[[ord(character) for character in vocabulary]] = np.arange(known)
    of_code[0] = known + 1  # NumPy pads texts with zeros
    return of_code[np.array(texts, f"<U{length}").view("<u4").reshape(-1, length)]


def from_sequences(
    sequences: Sequence[Sequence[int]] | np.ndarray,
    labels=None,
    test_sequences: Sequence[Sequence[int]] | np.ndarray | None = None,
    test_labels=None,
    *,
    tokens: int,
    length: int,
    classes: int | None = None,
    machine_of=None,
    test_machine_of=None,
    name: str = "sequences",
) -> Dataset:
    """Return a dataset whose examples are sequences of tokens, padded to one length.

    Each sequence is one record, the unit of record-level privacy. If `labels` is None, the model predicts each token
    from the tokens before it.

    Args:
        sequences: lists of tokens, or an array as `encode` returns it.
        labels: class of each sequence, int, shape [examples], or a list of classes for each sequence. Such a list has
            one entry per token, −1 for a token without a class.
        test_sequences, test_labels: held-out examples, or None.
        tokens: number of different tokens, which are 0 … tokens − 1. The number `tokens` itself is the padding token.
        length: number of tokens to which all sequences are padded or cut.
        classes: number of classes, if `labels` are given.
        machine_of, test_machine_of: index of the machine of each training and test example, or None if the data are not
            partitioned.
        name: name in results.

    Raises:
        Refusal: if a token or a class is out of range, or a sequence has no token with a label.

    >>> data = from_sequences([[0, 1, 2], [2, 1]], tokens=3, length=3)
    >>> data.features.tolist(), data.labels.tolist()
    ([[3, 0, 1], [3, 2, 1]], [[0, 1, 2], [2, 1, -1]])
    """
    require_at_least("tokens", tokens, 2)
    require_at_least("length", length, 1)
    if (labels is None) != (classes is None):
        raise Refusal("labels must go with classes, got one of them. Give both, or none to predict the next token")

    def pair(rows: Any, given: Any) -> tuple[np.ndarray, np.ndarray]:
        found = _padded(rows, length, tokens)
        if given is None:
            shifted = np.concatenate([np.full((len(found), 1), tokens, np.int32), found[:, :-1]], axis=1)
            return shifted, np.where(found == tokens, -1, found)
        several = len(given) and np.ndim(given[0])
        return found, _padded(given, length, -1) if several else np.asarray(given).astype(np.int32)

    test = (None, None) if test_sequences is None else pair(test_sequences, test_labels)
    features, targets = pair(sequences, labels)
    owners = [None if each is None else np.asarray(each, np.int32) for each in (machine_of, test_machine_of)]
    return Dataset(
        features,
        targets,
        *test,
        feature_bound=tokens * sqrt(length),
        classes=classes or tokens,
        name=name,
        source="sequences given by the user",
        machine_of=owners[0],
        test_machine_of=owners[1],
        raw_rows=RawRows(length),
        padding=tokens,
    )


def _padded(rows: Sequence[Sequence[int]] | np.ndarray, length: int, padding: int) -> np.ndarray:
    """Return rows of one length, int32, shape [rows, length]: cut off, or followed by the padding."""
    found = np.full((len(rows), length), padding, np.int32)
    for row, given in zip(found, rows, strict=True):
        part = np.asarray(given[:length])
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise Refusal(f"sequences must be lists of whole numbers, got {part.dtype} of shape {part.shape}")
        row[: part.size] = part
    return found
