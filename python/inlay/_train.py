import json
import os
import queue
import threading

from . import _inlay
from ._text import json_of


def _configuration(config, overrides):
    changes = [(key, json_of(value)) for key, value in overrides.items()]
    if isinstance(config, dict):
        lines = (f"{json.dumps(key)}: {json_of(value)}\n" for key, value in config.items())
        return _inlay.Configuration("".join(lines), "configuration", changes)
    if isinstance(config, str) and ("\n" in config or config.lstrip().startswith("{")):
        return _inlay.Configuration(config, "configuration", changes)
    result = _inlay.Configuration.read(os.fspath(config))
    result.overrides = changes
    return result


def plan(config, **overrides):
    """Where every byte of a run will go and how fast it will be, as `inlay plan --json` says it: a dict.

    config: a dict, the path of a YAML file, or its text; keys given by name go before it.
    """
    return json.loads(_inlay.plan(_configuration(config, overrides)))


def train(config, *, resume=False, callbacks=(), quiet=True, **overrides):
    """A run, which begins when it is iterated over or run() is called.

    config: a dict, the path of a YAML file, or its text; keys given by name go before it. callbacks are called with
    every record; one that returns True ends the run after that step, with everything saved.
    """
    return Run(_configuration(config, overrides), resume, tuple(callbacks), quiet)


class Run:
    """Iterating over a run trains it: every step and every evaluation is a dict, as in metrics.jsonl.

    The run waits while you look at one. Leaving the loop, or Ctrl-C, ends it after the current step and saves a
    checkpoint, from which train(..., resume=True) goes on.
    """

    def __init__(self, configuration, resume, callbacks, quiet):
        self._configuration = configuration
        self._resume = resume
        self._callbacks = callbacks
        self._quiet = quiet
        self._thread = None
        self._answers = queue.SimpleQueue()  # records, then how it ended
        self._go_on = queue.SimpleQueue()
        self._stop = False
        self.finished = False
        """Whether the run came to its end."""
        self.last = None
        """The latest record."""

    def run(self):
        """All of it. Returns the latest record of a step."""
        step = None
        for record in self:
            step = record if "loss" in record else step
        return step

    def stop(self):
        """Ends the run after its current step; may be called from another thread."""
        self._stop = True
        _inlay.stop_training()

    def __iter__(self):
        if self._thread is not None:
            raise RuntimeError("a run can be iterated over once; resume=True begins another one from its checkpoint")
        self._thread = threading.Thread(target=self._work, name="inlay.train", daemon=True)
        self._thread.start()
        try:
            while (answer := self._next()) is not None:
                self.last = answer
                for callback in self._callbacks:
                    self._stop = bool(callback(answer)) or self._stop
                yield answer
                self._go_on.put(None)
        finally:
            self._end()

    def _next(self):
        answer = self._answers.get()
        if isinstance(answer, dict):
            return answer
        self._thread.join()
        if isinstance(answer, BaseException):
            raise answer
        self.finished = answer
        return None

    def _end(self):
        if not self._thread.is_alive():
            return
        self.stop()
        self._go_on.put(None)
        while isinstance(self._answers.get(), dict):
            self._go_on.put(None)
        self._thread.join()

    def _work(self):
        def listen(line):
            self._answers.put(json.loads(line))
            self._go_on.get()
            return not self._stop

        try:
            self._answers.put(_inlay.train(self._configuration, self._resume, self._quiet, listen))
        except BaseException as error:  # whoever iterates gets it
            self._answers.put(error)
