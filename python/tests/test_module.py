"""The module with NumPy alone: python3 -m unittest python/tests/test_module.py, against whichever inlay is installed."""

import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np

import inlay

source = Path(__file__).resolve().parents[2]
model = source / "tests/golden/models/llama_llama3_tied"


def documents():
    rows = [json.loads(line) for line in (model / "data.jsonl").read_text().splitlines()]
    return [(row["input_ids"], row["labels"]) for row in rows]


class Text(unittest.TestCase):
    def tokenizer(self, folder):
        tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "é": 3}, "merges": ["a b"],
                               "unk_token": None, "fuse_unk": False, "byte_fallback": False},
                     "added_tokens": [{"id": 4, "content": "<s>", "special": True}],
                     "pre_tokenizer": None, "normalizer": None, "post_processor": None, "decoder": {"type": "Fuse"}}
        Path(folder, "tokenizer.json").write_text(json.dumps(tokenizer))
        return inlay.Tokenizer(folder)

    def test_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = self.tokenizer(folder)
            ids = tokenizer.encode("abaé<s>")
            self.assertEqual(ids.dtype, np.int32)
            self.assertEqual(ids.tolist(), [2, 0, 3, 4])
            self.assertEqual(tokenizer.decode(ids), "abaé")
            self.assertEqual(tokenizer.decode([2, 4], skip_special=False), "ab<s>")
            self.assertEqual([part.tolist() for part in tokenizer.encode_batch(["ab", "", "b"], threads=2)],
                             [[2], [], [1]])
            self.assertEqual(tokenizer.decode_batch([[2], [1, 1]]), ["ab", "bb"])
            self.assertEqual((tokenizer.vocab_size, tokenizer.id_of("ab"), tokenizer.token_of(1), tokenizer.bos),
                             (5, 2, "b", None))

    def test_template(self):
        template = inlay.ChatTemplate.from_text("{% for m in messages %}{{ m.role }}{{ m.content }}{{ end }}{% endfor %}")
        self.assertEqual(template.render([{"role": "u", "content": "é🙂"}], end="."), "ué🙂.")
        self.assertEqual(template.render_batch([[{"role": "a", "content": str(i)}] for i in range(50)], end=""),
                         [f"a{i}" for i in range(50)])
        with self.assertRaisesRegex(inlay.UserError, "^chat template:1:7: "):
            inlay.ChatTemplate.from_text("{% if %}").render([])

    def test_values_come_to_a_template_as_they_are(self):
        class Text(str):
            pass

        template = inlay.ChatTemplate.from_text("{{ messages[0] | tojson }}")
        message = {"role": "a", "content": "\"\\\n\r\t\x01\x1f\x7f é 🙂 \u2028", "more": [1, -2.5, 10**30, True, None, (1, 2), []],
                   "inside": {"k": {}, "l": [[{"m": ""}]]}, 3: Text("t")}
        self.assertEqual(json.loads(template.render([message])), json.loads(json.dumps(message)))
        with self.assertRaisesRegex(TypeError, "not JSON serializable"):
            template.render([{"role": object()}])
        without_end = []
        without_end.append(without_end)
        with self.assertRaisesRegex(ValueError, "Circular"):
            template.render(without_end)
        with self.assertRaises(UnicodeError):
            template.render([{"role": "\ud800"}])
        with self.assertRaisesRegex(inlay.UserError, "messages: expected an array"):
            template.render(None)

    def test_errors_are_value_errors_with_the_words_of_the_program(self):
        with self.assertRaisesRegex(ValueError, "/nowhere") as caught:
            inlay.Tokenizer("/nowhere/tokenizer.json")
        self.assertIsInstance(caught.exception, inlay.UserError)


class Data(unittest.TestCase):
    def test_read(self):
        data = inlay.read(model / "data.jsonl")
        self.assertEqual(len(data), len(documents()))
        for document, (ids, labels) in zip(data, documents()):
            self.assertEqual(document.input_ids.tolist(), ids)
            self.assertEqual(document.labels.tolist(), [-100] + labels[1:])
            self.assertIsNone(document.weights)
        self.assertEqual(data.lengths().tolist(), [len(ids) for ids, _ in documents()])
        self.assertEqual(data[-1].input_ids.tolist(), documents()[-1][0])
        with self.assertRaises(IndexError):
            data[len(data)]
        with self.assertRaisesRegex(inlay.UserError, "did you mean"):
            inlay.read(model / "data.jsonl", typ="alpaca")

    def test_every_kind_of_file(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run([sys.executable, "-m", "inlay", "init", folder / "m", "--preset", "tiny"], check=True,
                           stdout=subprocess.DEVNULL)
            rows = [{"instruction": f"Say {word}.", "output": word} for word in ("yes", "no")]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / "rows.jsonl").write_text(lines)
            (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
            for ending, comma in ((".csv", ","), (".tsv", "\t")):
                table = [list(rows[0])] + [list(row.values()) for row in rows]
                (folder / f"rows{ending}").write_text("".join(comma.join(line) + "\n" for line in table))
            expected = [d.input_ids.tolist() for d in inlay.read(folder / "rows.jsonl", folder / "m", type="alpaca")]
            self.assertEqual(len(expected), 2)
            for ending in (".jsonl.gz", ".csv", ".tsv"):
                data = inlay.read(folder / f"rows{ending}", folder / "m", type="alpaca")
                self.assertEqual([d.input_ids.tolist() for d in data], expected, ending)
            (folder / "more").mkdir()
            (folder / "rows.jsonl").rename(folder / "more/rows.jsonl")
            for path in (folder / "more", folder / "more/*.jsonl"):
                self.assertEqual(len(inlay.read(path, folder / "m", type="alpaca")), 2, path)
            # A path among the keys is its text.
            template = folder / "chat.jinja"
            template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
            (folder / "chat.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"},
                                                                        {"role": "assistant", "content": "b"}]}) + "\n")
            data = inlay.read(folder / "chat.jsonl", folder / "m", type="chat_template", chat_template=template)
            self.assertEqual(len(data), 1)


class Models(unittest.TestCase):
    def setUp(self):
        self.model = inlay.load(model, device="cpu", dtype="fp32")

    def test_logits_and_gradients_agree(self):
        result = self.model.grad(documents())
        expected = json.loads((model / "expected.json").read_text())
        self.assertAlmostEqual(result.loss, expected["loss_fp64"], places=5)
        self.assertEqual(result.labels, expected["valid_labels"])
        total = 0
        for ids, labels in documents():
            logits = self.model.logits(ids).astype(np.float64)
            self.assertEqual(logits.shape, (len(ids), self.model.vocab_size))
            likelihood = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            total -= sum(likelihood[i, label] for i, label in enumerate(labels[1:]) if label != -100)
        self.assertAlmostEqual(total / result.labels, result.loss, places=5)
        self.assertTrue(all(np.isfinite(tensor).all() for tensor in result.tensors.values()))

    def test_generate(self):
        made = self.model.generate([1, 2, 3], 8)
        self.assertEqual(made.dtype, np.int32)
        self.assertEqual(len(made), 8)
        greedy = self.model.logits(np.concatenate([[1, 2, 3], made[:-1]]))[2:].argmax(1)
        self.assertEqual(made.tolist(), greedy.tolist())
        seen = []
        self.model.generate(np.array([1, 2, 3]), 8, on_token=lambda id: seen.append(id) or len(seen) == 3)
        self.assertEqual(seen, made.tolist()[:3])
        with self.assertRaisesRegex(inlay.UserError, "not a token of this model"):
            self.model.generate([10**6])

    def test_answers_end_where_the_program_ends_them(self):
        with tempfile.TemporaryDirectory() as name:
            base = Path(name, "m")
            subprocess.run([sys.executable, "-m", "inlay", "init", base, "--preset", "tiny"], check=True,
                           stdout=subprocess.DEVNULL)
            drawn = {"max_new_tokens": 6, "temperature": 1.0, "seed": 3}  # the likeliest token is always the same one
            speaker = inlay.load(base, device="cpu", dtype="fp32")
            ids = speaker.tokenizer.encode("one")
            whole = speaker.generate(ids, **drawn).tolist()
            self.assertEqual(speaker.stop_tokens, [speaker.tokenizer.eos])
            end = max(i for i in range(6) if whole[i] not in whole[:i])
            self.assertGreater(end, 0)
            stop = whole[end]
            (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}))
            self.assertEqual(speaker.stop_tokens, [speaker.tokenizer.eos, stop])
            self.assertEqual(speaker.generate("one", **drawn), speaker.tokenizer.decode(whole[:end]))
            self.assertEqual(speaker.generate(ids, stop=stop, **drawn).tolist(), whole[:end])
            self.assertEqual(speaker.generate(ids, stop=[999, stop], **drawn).tolist(), whole[:end])
            self.assertEqual(speaker.generate(ids, **drawn).tolist(), whole)

    def test_arrays_come_by_dlpack(self):
        class Foreign:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **keys):
                return self.array.__dlpack__(**keys)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        ids = np.array([1, 2, 3])
        np.testing.assert_array_equal(self.model.logits(Foreign(ids)), self.model.logits(ids))
        again = np.from_dlpack(self.model.logits(ids))
        self.assertEqual(again.shape, (3, self.model.vocab_size))

    def test_python_goes_on_meanwhile(self):
        beats = []
        done = threading.Event()

        def beat():
            while not done.wait(0.001):
                beats.append(1)

        thread = threading.Thread(target=beat)
        thread.start()
        self.model.generate([1, 2, 3], 250)
        done.set()
        thread.join()
        self.assertGreater(len(beats), 2)


class Training(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.config = {"base_model": str(model), "output_dir": Path(self.folder.name, "out"),
                       "datasets": [{"path": str(model / "data.jsonl")}], "learning_rate": 1e-3, "max_steps": 4,
                       "device": "cpu", "dtype": "fp32", "dataset_prepared_path": "off"}

    def test_iterates_over_metrics(self):
        seen = []
        run = inlay.train(self.config, callbacks=[seen.append])
        records = list(run)
        self.assertEqual([record["step"] for record in records], [1, 2, 3, 4])
        self.assertEqual(seen, records)
        self.assertTrue(run.finished)
        lines = Path(self.folder.name, "out/metrics.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line) for line in lines], records)

    def test_leaving_the_loop_saves_and_resuming_goes_on(self):
        for record in inlay.train(self.config):
            if record["step"] == 2:
                break
        self.assertTrue(Path(self.folder.name, "out/checkpoint-2").is_dir())
        self.assertEqual([r["step"] for r in inlay.train(self.config, resume=True)], [3, 4])

    def test_a_callback_ends_the_run(self):
        run = inlay.train(self.config, callbacks=[lambda record: record["step"] == 3])
        self.assertEqual(run.run()["step"], 3)
        self.assertFalse(run.finished)

    def test_text_files_and_changes(self):
        text = "".join(f"{key}: {json.dumps(value, default=str)}\n" for key, value in self.config.items())
        file = Path(self.folder.name, "run.yaml")
        file.write_text(text)
        for config in (text, file, str(file)):
            plan = inlay.plan(config, sequence_len=512)
            self.assertTrue(plan["fits"])
        other = Path(self.folder.name, "other")
        self.assertEqual([r["step"] for r in inlay.train(file, max_steps=1, output_dir=other)], [1])
        self.assertTrue((other / "metrics.jsonl").exists())
        data = [{"path": model / "data.jsonl"}]
        self.assertTrue(inlay.plan(file, output_dir=other / "more", datasets=data)["fits"])
        with self.assertRaisesRegex(inlay.UserError, "learning_rate"):
            inlay.plan(dict(self.config, learning_rat=1))
        with self.assertRaisesRegex(inlay.UserError, "base_model"):
            list(inlay.train({}))

    def test_ctrl_c_ends_a_run_after_its_step(self):
        config = json.dumps(dict(self.config, max_steps=100000), default=str)
        # What a shell starts in the background ignores the signal, and so would this.
        code = ("import inlay, json, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
                "run = inlay.train(json.loads(sys.argv[1]))\ntry:\n"
                "    for record in run:\n        print(record['step'], flush=True)\n"
                "except KeyboardInterrupt:\n    print('interrupted', run.last['step'], flush=True)\n")
        process = subprocess.Popen([sys.executable, "-c", code, config], stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.strip() == "5":
                break
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=60)[0].split()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(out[-2], "interrupted")
        self.assertTrue(list(Path(self.folder.name, "out").glob("checkpoint-*")))


class Command(unittest.TestCase):
    def test_the_program_comes_along(self):
        ran = subprocess.run([sys.executable, "-m", "inlay", "--version"], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn(f"inlay {inlay.__version__}\n", ran.stdout)
        self.assertIn(inlay.build["commit"], ran.stdout)


if __name__ == "__main__":
    unittest.main()
