import numbers
import os
from typing import Dict, NamedTuple

import numpy as np

from . import _inlay
from ._arrays import ids_of
from ._text import ChatTemplate, Tokenizer


class Gradients(NamedTuple):
    loss: float  # mean over the labels that count
    labels: int  # how many of them there were
    tensors: Dict[str, np.ndarray]  # by their names in the checkpoint, fp32


def load(folder, device="auto", dtype="auto", adapter=None):
    """A model in memory, to look into.

    device: auto, cpu or cuda; dtype: auto, fp32 or bf16; adapter: the folder of one, of `inlay train` or PEFT.
    """
    return Model(folder, device, dtype, adapter)


class Model:
    """What a model answers, how likely it finds things, where gradients go. One thread at a time.

    Memory is planned for what is asked: a longer text than before, or gradients after answers, loads the weights anew.
    """

    def __init__(self, folder, device="auto", dtype="auto", adapter=None):
        self._folder = os.fspath(folder)
        self._adapter = os.fspath(adapter or "")
        self._model = _inlay.Model(self._folder, device, dtype, self._adapter)
        self._tokenizer = None

    @property
    def tokenizer(self):
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self._text_folder())
        return self._tokenizer

    vocab_size = property(lambda self: self._model.vocab_size)
    parameter_count = property(lambda self: self._model.parameter_count)

    @property
    def stop_tokens(self):
        """What ends an answer: the tokenizer's eos, and what generation_config.json names."""
        return self._model.stop_tokens

    def generate(self, prompt, max_new_tokens=32, *, temperature=0.0, top_p=1.0, seed=0, stop=None, sequence=0,
                 on_token=None):
        """What the model makes of a prompt.

        A text, or a conversation (a list of messages, rendered by the model's chat template), is answered by a text that
        ends where the model ends it (stop_tokens); token ids by an array of them. temperature 0 always takes the likeliest
        token. stop: the id of a token, or several ids, each of which ends the answer, in the place of the model's own.
        on_token is called with every id as it is made; where it returns True, the answer ends.
        """
        text = isinstance(prompt, str)
        chat = isinstance(prompt, list) and len(prompt) > 0 and isinstance(prompt[0], dict)
        if text:
            ids = self.tokenizer.encode(prompt)
        elif chat:
            rendered = ChatTemplate(self._text_folder()).render(prompt, add_generation_prompt=True)
            ids = self.tokenizer.encode(rendered, special=False)
        else:
            ids = ids_of(prompt)
        if stop is None:
            stops = self.stop_tokens if text or chat else []
        else:
            stops = [stop] if isinstance(stop, numbers.Integral) else [int(id) for id in stop]
        listener = None if on_token is None else lambda id: not on_token(id)
        made = self._model.generate(ids, max_new_tokens, stops, temperature, top_p, seed, sequence, listener)
        return self.tokenizer.decode(made) if text or chat else made

    def logits(self, tokens):
        """Of what follows every token of a text or of ids: float32 [tokens, vocab_size]."""
        return self._model.logits(self.tokenizer.encode(tokens) if isinstance(tokens, str) else ids_of(tokens))

    def grad(self, documents):
        """The gradient of the mean loss over all documents as one batch, for every parameter.

        documents: token ids, of which all are learned; (input_ids, labels) with -100 where nothing is; or what
        `inlay.read` gives.
        """
        pairs = []
        for document in documents:
            if isinstance(document, tuple):
                pairs.append((ids_of(document[0]), ids_of(document[1])))
            else:
                ids = ids_of(document)
                pairs.append((ids, ids))
        return Gradients(*self._model.grad(pairs))

    def _text_folder(self):
        own = os.path.join(self._adapter, "tokenizer.json")
        return self._adapter if self._adapter and os.path.exists(own) else self._folder
