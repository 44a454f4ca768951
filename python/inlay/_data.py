import os
from typing import NamedTuple, Optional

import numpy as np

from . import _inlay
from ._text import json_of


class Document(NamedTuple):
    """A document as training sees it."""

    input_ids: np.ndarray
    labels: np.ndarray  # at their tokens' positions; -100: nothing is learned there
    weights: Optional[np.ndarray]  # of the labels; None: all of them are 1


class Dataset:
    """The documents of a file. They are read when they are asked for; threads may share one."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # an IndexError where there is none
        input_ids, labels, weights = self._dataset.read(index)
        return Document(input_ids, labels, weights if weights.size else None)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def lengths(self):
        """Tokens of every document."""
        return np.array([self._dataset.length(i) for i in range(len(self))], np.int64)

    @property
    def rows(self):
        """What became of the file's rows: how many there were, were bad, and had nothing to learn."""
        return dict(zip(("all", "skipped", "unlabelled"), self._dataset.rows))


def read(path, model=None, *, skip_bad_rows=False, threads=0, **keys):
    """The documents of a .jsonl, .json, .txt, .csv, .tsv or .parquet file, as `inlay train` prepares them.

    All but the last may be compressed (.gz, .zst). path may also be a folder of such files, or a pattern.
    model: the folder whose tokenizer and chat template make them; rows of token ids need none. keys: those that an entry
    of `datasets` may have in a configuration, such as type="alpaca".
    """
    return Dataset(_inlay.Dataset(os.fspath(path), os.fspath(model or ""), json_of(keys) if keys else "",
                                  skip_bad_rows, threads))
