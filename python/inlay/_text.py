import json
import os

from . import _inlay
from ._arrays import ids_of


class Tokenizer:
    """Text to tokens and back, with the ids of Hugging Face's tokenizers. Threads may share one."""

    def __init__(self, path):
        """path: a model folder, or its tokenizer.json."""
        self._tokenizer = _inlay.Tokenizer(os.fspath(path))

    def encode(self, text, special=True):
        """An int32 array. special: with the tokens that the model expects around a text."""
        return self._tokenizer.encode(text, special)

    def encode_batch(self, texts, special=True, threads=0):
        """A list of arrays, of texts that are worked on at once; threads 0: as many as processors are granted."""
        ids, places = self.encode_flat(texts, special, threads)
        places = places.tolist()
        return [ids[begin:end] for begin, end in zip(places, places[1:])]

    def encode_flat(self, texts, special=True, threads=0):
        """The same end to end: all ids, and where each text begins (and the last one ends)."""
        return self._tokenizer.encode_flat(list(texts), special, threads)

    def decode(self, ids, skip_special=True):
        return self._tokenizer.decode(ids_of(ids), skip_special)

    def decode_batch(self, texts, skip_special=True, threads=0):
        return self._tokenizer.decode_batch([ids_of(ids) for ids in texts], skip_special, threads)

    def id_of(self, token):
        """The id of a token by its spelling in tokenizer.json; None where there is none."""
        return self._tokenizer.id_of(token)

    def token_of(self, id):
        return self._tokenizer.token_of(id)

    @property
    def vocab_size(self):
        """One more than the largest id."""
        return self._tokenizer.vocab_size

    bos = property(lambda self: self._tokenizer.bos)
    eos = property(lambda self: self._tokenizer.eos)
    pad = property(lambda self: self._tokenizer.pad)


def json_of(value):
    """With paths as their texts."""
    return json.dumps(value, ensure_ascii=False, default=os.fspath)


def _json(value):
    return "" if value is None else json.dumps(value, ensure_ascii=False)


class ChatTemplate:
    """A model's template for conversations, rendered as transformers renders it. Threads may share one."""

    def __init__(self, path):
        """path: a model folder, or a .jinja file."""
        self._template = _inlay.ChatTemplate(os.fspath(path))

    @classmethod
    def from_text(cls, text):
        """From the text of a template; bos_token and the like are then variables of render()."""
        template = cls.__new__(cls)
        template._template = _inlay.ChatTemplate.from_text(text)
        return template

    def render(self, messages, *, add_generation_prompt=False, tools=None, documents=None, **variables):
        """The text of a conversation: a list of {"role": ..., "content": ...}."""
        return self.render_batch([messages], add_generation_prompt=add_generation_prompt, tools=tools,
                                 documents=documents, threads=1, **variables)[0]

    def render_batch(self, conversations, *, add_generation_prompt=False, tools=None, documents=None, threads=0,
                     **variables):
        """Texts of many conversations, worked on at once."""
        return self._template.render(list(conversations), add_generation_prompt,
                                     _json(tools), _json(documents), _json(variables or None), threads)
