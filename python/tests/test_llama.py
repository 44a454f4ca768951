"""patch_llama beside what transformers computes, for every family that it takes. Needs torch and transformers; the parts about
adapters need peft: python3 test_llama.py."""

import copy
import itertools
import os
import unittest

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as in test_torch.py

import torch

import inlay
import inlay.torch as ops

try:
    import transformers
except ImportError:
    transformers = None
try:
    import peft
except ImportError:
    peft = None

sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2)
gelu = {"mlp": False}
families = {
    "Llama": {}, "Mistral": {}, "Qwen2": {}, "Qwen3": {}, "SmolLM3": {}, "Olmo2": {}, "Olmo3": {},
    "Granite": {"logits_scaling": 3.0, "residual_multiplier": 0.7}, "Gemma": gelu,
    "Gemma2": {**gelu, "final_logit_softcapping": 0.5}, "Gemma3": {**gelu, "final_logit_softcapping": 0.5}, "Phi3": gelu,
}


def made(family="Llama", **more):
    torch.manual_seed(0)
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**sizes, **more)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 97, (2, 11), generator=generator)
    return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(2, 11, generator=generator) < 0.2, -100)}


def step(model, **inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Case(unittest.TestCase):
    def assert_same(self, ours, theirs, atol=1e-5, rtol=1e-4):
        torch.testing.assert_close(ours[0], theirs[0], atol=atol, rtol=rtol)
        self.assertEqual(ours[1].keys(), theirs[1].keys())
        for name, gradient in theirs[1].items():
            torch.testing.assert_close(ours[1][name], gradient, atol=atol, rtol=rtol, msg=lambda m: f"{name}: {m}")


@unittest.skipIf(transformers is None, "transformers is not installed")
class Patch(Case):
    def test_every_family(self):
        for (family, more), keep in itertools.product(families.items(), (False, None)):
            with self.subTest(family=family, keep=keep):
                more = dict(more)
                mlp = more.pop("mlp", True)
                model = made(family, **more)
                expected, counted = step(model, **batch()), step(model, **batch(), num_items_in_batch=7)
                ops.patch_llama(model, mlp=mlp, tile=4 if keep is False else 0, keep=keep)
                self.assertIsNone(model(**batch()).logits)
                self.assert_same(step(model, **batch()), expected)
                self.assert_same(step(model, **batch(), num_items_in_batch=7), counted)
                self.assertEqual(model(input_ids=batch()["input_ids"]).logits.shape, (2, 11, 97))

    def test_calls_as_transformers_has_them(self):
        model = made()
        ids, labels = batch()["input_ids"], batch()["labels"]
        expected = model(ids, labels=labels).loss
        shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        patched = ops.patch_llama(copy.deepcopy(model))
        for out in (patched(ids, None, None, None, None, labels), patched(ids, labels=labels, shift_labels=shifted)):
            torch.testing.assert_close(out.loss, expected)
        torch.testing.assert_close(patched(ids, labels=labels, return_dict=False)[0], expected)
        self.assertEqual(len(patched(ids, labels=labels, output_hidden_states=True).hidden_states), 3)

    def test_others_are_refused(self):
        with self.assertRaisesRegex(TypeError, "patch_llama knows"):
            ops.patch_llama(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1)))
        with self.assertRaisesRegex(TypeError, "patch_llama knows"):
            ops.patch_llama(torch.nn.Linear(2, 2))
        with self.assertRaisesRegex(inlay.UserError, "only SwiGLU can be patched; mlp=False"):
            ops.patch_llama(made("Gemma2"))
        with self.assertRaisesRegex(inlay.UserError, "has a bias"):
            ops.patch_llama(made(mlp_bias=True))
        with self.assertRaisesRegex(inlay.UserError, "has no MLP of gate_proj, up_proj, down_proj; mlp=False"):
            ops.patch_llama(made("Phi3"))

    def test_quantised_weights_are_refused(self):
        for where in ("mlp", "head"):
            model = made()
            linear = model.model.layers[1].mlp.up_proj if where == "mlp" else model.lm_head
            linear.weight = torch.nn.Parameter(torch.zeros(8, 8, dtype=torch.uint8), requires_grad=False)
            with self.assertRaisesRegex(TypeError, "quantised weights cannot be patched"):
                ops.patch_llama(model)
            self.assertFalse(any("forward" in vars(module) for module in model.modules()), "patched in part")

    def test_a_copy_computes_with_its_own_weights(self):
        patched = ops.patch_llama(made())
        other = copy.deepcopy(patched)
        expected = step(other, **batch())
        with torch.no_grad():
            for parameter in patched.parameters():
                parameter.zero_()
        self.assert_same(step(other, **batch()), expected)

    def test_autocast(self):
        model = made()

        def cast(model):
            with torch.autocast("cpu", torch.bfloat16):
                return step(model, **batch())

        exact, theirs = step(model, **batch()), cast(model)
        ours = cast(ops.patch_llama(model))
        error = lambda result, name: float((result[1][name] - exact[1][name]).norm() / exact[1][name].norm())
        for name in exact[1]:
            self.assertEqual(ours[1][name].dtype, torch.float32)
            self.assertLess(error(ours, name), 2 * error(theirs, name) + 1e-3, name)
            self.assertGreater(error(ours, name), 1e-5, f"{name}: not in bfloat16")


@unittest.skipIf(transformers is None or peft is None, "transformers and peft are not installed")
class Adapters(Case):
    targets = ["q_proj", "gate_proj", "down_proj"]

    def adapted(self, model, targets):
        torch.manual_seed(1)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, lora_dropout=0.0))
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        return wrapped

    def test_adapters_in_either_order(self):
        for targets in (["q_proj"], self.targets, ["q_proj", "lm_head"]):
            expected = step(self.adapted(made(), targets), **batch())
            with self.subTest(targets=targets, order="patch, adapt"):
                self.assert_same(step(self.adapted(ops.patch_llama(made()), targets), **batch()), expected)
            with self.subTest(targets=targets, order="adapt, patch"):
                self.assert_same(step(ops.patch_llama(self.adapted(made(), targets)), **batch()), expected)

    def test_merged_and_disabled(self):
        model = self.adapted(ops.patch_llama(made()), self.targets)
        changed, plain = model(**batch()).loss, made()(**batch()).loss
        with model.disable_adapter():
            torch.testing.assert_close(model(**batch()).loss, plain)
        torch.testing.assert_close(model.merge_and_unload()(**batch()).loss, changed, atol=1e-5, rtol=1e-4)


@unittest.skipIf(transformers is None, "transformers is not installed")
class Trainers(unittest.TestCase):
    def test_trainer_with_bf16(self):
        import tempfile

        rows = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in batch()["input_ids"]]

        def losses(model):
            with tempfile.TemporaryDirectory() as folder:
                settings = transformers.TrainingArguments(folder, max_steps=3, bf16=True, use_cpu=True, report_to=[],
                                                          logging_steps=1, save_strategy="no", disable_tqdm=True,
                                                          learning_rate=1e-2, gradient_accumulation_steps=2,
                                                          per_device_train_batch_size=1)
                trainer = transformers.Trainer(model, settings, train_dataset=rows)
                trainer.train()
                return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

        try:
            import accelerate  # noqa: F401
        except ImportError:
            self.skipTest("accelerate is not installed")
        theirs, ours = losses(made()), losses(ops.patch_llama(made()))
        self.assertEqual(len(ours), 3)
        self.assertLess(ours[-1], ours[0])
        for a, b in zip(ours, theirs):
            self.assertAlmostEqual(a, b, delta=0.02 * b)  # both round to bfloat16, each in its own places


if __name__ == "__main__":
    unittest.main()
