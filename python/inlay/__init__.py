"""Fine-tunes language models natively: tokenizers, chat templates, datasets, plans, runs and models of Inlay.

docs/python.md shows all of it; `inlay.torch` has the operations for PyTorch. A mistake of the user is an
`inlay.UserError`, a ValueError, with the words of the command line.
"""

from ._data import Dataset, Document, read
from ._inlay import UserError
from ._inlay import version as _version
from ._model import Gradients, Model, load
from ._text import ChatTemplate, Tokenizer
from ._train import Run, plan, train

UserError.__module__ = "inlay"

build = _version()
"""What this module was built from: number, commit, compiler, cuda, kernels."""
__version__ = build["number"]

__all__ = [
    "ChatTemplate", "Dataset", "Document", "Gradients", "Model", "Run", "Tokenizer", "UserError", "build", "load",
    "plan", "read", "train",
]
