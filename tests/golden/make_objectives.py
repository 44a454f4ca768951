"""Makes tests/golden/objectives: what PyTorch and TRL say about losses beyond the next token.

    pip install torch transformers trl safetensors     # made with torch 2.15, transformers 5.17, trl 1.16, on a CPU
    python tests/golden/make_objectives.py             # rewrites tests/golden/objectives/, the same bytes every time

For models of tests/golden/models, in fp64 from the stored weights:
  MODEL/cases.json             documents, and for every case its settings, loss and metrics
  MODEL/CASE.safetensors       grad.<parameter in the checkpoint>, rounded to fp32
  teacher/                     a random Llama with the vocabulary of llama_linear_sharded
Formulas are written out below, from the papers. Those that TRL has (dpo, ipo, hinge, kto, orpo, simpo, sdft) are run through
TRL's own trainers as well, in fp32: the script fails where loss, metrics or gradients differ by more than 1e-5.
"""

import json
import math
import pathlib
import shutil
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
OUT = HERE / "objectives"
EOS, PAD = 2, 0
BETA = 0.3


def load(name):
    return AutoModelForCausalLM.from_pretrained(HERE / "models" / name, dtype=torch.float32, attn_implementation="eager")


def tokens(generator, vocab, least, most):
    count = int(torch.randint(least, most + 1, (1,), generator=generator))
    return torch.randint(3, vocab, (count,), generator=generator).tolist()


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def answer_log_probs(model, prompt, answer):
    """Log-probabilities of the answer's tokens, and of all tokens but the first."""
    ids = prompt + answer
    log_probs = F.log_softmax(logits_of(model, ids).double(), -1)[:-1]
    each = log_probs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return each[len(prompt) - 1:], each


# ---- preferences ----

def preference_loss(kind, sums, spec):
    """Loss of all pairs: chosen, rejected: lists of (log-probabilities of the answer, of everything), references."""
    chosen, rejected, chosen_ref, rejected_ref = sums
    losses, metrics = [], []
    for (c, _), (r, _), rc, rr in zip(chosen, rejected, chosen_ref, rejected_ref):
        if kind in ("sigmoid", "hinge", "ipo"):
            c_ratio, r_ratio = c.sum() - rc, r.sum() - rr
            if kind == "sigmoid":
                x = spec["beta"] * (c_ratio - r_ratio)
                e = spec.get("label_smoothing", 0.0)
                losses.append(-(1 - e) * F.logsigmoid(x) - e * F.logsigmoid(-x))
            elif kind == "hinge":
                losses.append(torch.relu(1 - spec["beta"] * (c_ratio - r_ratio)))
            else:
                losses.append((c_ratio / len(c) - r_ratio / len(r) - 1 / (2 * spec["beta"])) ** 2)
            metrics.append((spec["beta"] * c_ratio, spec["beta"] * r_ratio, c.sum(), r.sum()))
        elif kind == "simpo":
            x = spec["beta"] * (c.mean() - r.mean()) - spec["gamma"]
            losses.append(-F.logsigmoid(x))
            metrics.append((spec["beta"] * c.mean(), spec["beta"] * r.mean(), c.mean(), r.mean()))
        else:  # orpo
            odds = lambda x: x - torch.log1p(-torch.exp(x))
            losses.append(-spec["beta"] * F.logsigmoid(odds(c.mean()) - odds(r.mean())))
            metrics.append((spec["beta"] * c.mean(), spec["beta"] * r.mean(), c.mean(), r.mean()))
    loss = torch.stack(losses).mean()
    likelihood = spec.get("likelihood", 0.0)
    if likelihood:  # the mean over labels of all pairs together; of orpo, prompts too
        parts = [(everything if kind == "orpo" else answer) for answer, everything in chosen]
        loss = loss - likelihood * torch.cat(parts).mean()
    mean = lambda i: float(torch.stack([m[i] for m in metrics]).mean())
    return loss, {"rewards/chosen": mean(0), "rewards/rejected": mean(1), "rewards/margins": mean(0) - mean(1),
                  "rewards/accuracies": sum(float(m[0] > m[1]) for m in metrics) / len(metrics),
                  "logps/chosen": mean(2), "logps/rejected": mean(3)}


def kto_loss(answers, mismatched, labels, references, mismatched_references, spec):
    kl = torch.stack([m[0].sum() - r for m, r in zip(mismatched, mismatched_references)]).mean().detach().clamp(min=0)
    losses, rewards = [], {True: [], False: []}
    for (a, _), good, reference in zip(answers, labels, references):
        ratio = a.sum() - reference
        x = spec["beta"] * (ratio - kl) if good else spec["beta"] * (kl - ratio)
        losses.append((spec["desirable"] if good else spec["undesirable"]) * (1 - torch.sigmoid(x)))
        rewards[good].append(float(spec["beta"] * ratio))
    mean = lambda values: sum(values) / len(values)
    return torch.stack(losses).mean(), {"rewards/chosen": mean(rewards[True]), "rewards/rejected": mean(rewards[False]),
                                        "kl": float(kl)}


# ---- tokens ----

def token_loss(model, documents, weight):
    """Mean over labels of weight(log-probabilities, target) times the loss, weights being constants."""
    losses, weights = [], []
    rows = []
    for document in documents:
        log_probs = F.log_softmax(logits_of(model, document["input_ids"]).double(), -1)
        for i, label in enumerate(document["labels"][1:]):
            if label != -100:
                rows.append((log_probs[i], label))
    mean = torch.stack([-row[label] for row, label in rows]).mean().detach()
    for row, label in rows:
        losses.append(-row[label])
        weights.append(weight(row.detach(), label, mean))
    return (torch.stack(weights) * torch.stack(losses)).mean()


def entropy_of_largest(row, count):
    largest = torch.log_softmax(torch.topk(row, min(count, len(row))).values, -1)
    return -(largest.exp() * largest).sum() / math.log(min(count, len(row)))


RULES = {
    "dft": lambda row, label, mean: row[label].exp(),
    "eaft": lambda row, label, mean: entropy_of_largest(row, 20),
    "eaft_5": lambda row, label, mean: entropy_of_largest(row, 5),
    "talr": lambda row, label, mean: torch.clamp((row[label] / mean).exp(), min=0.01),
    "talr_2": lambda row, label, mean: torch.clamp((row[label] / 2.0).exp(), min=0.1),
}


# ---- another model ----

def divergence(kind, p, q, beta):
    """p, q: log-probabilities of the model and of the other one."""
    if kind == "forward":
        return torch.where(q.exp() > 0, q.exp() * (q - p), torch.zeros_like(p)).sum()
    if kind == "reverse":
        return (p.exp() * (p - q)).sum()
    m = (beta * q.exp() + (1 - beta) * p.exp()).log()
    theirs = torch.where(q.exp() > 0, q.exp() * (q - m), torch.zeros_like(p)).sum()
    return beta * theirs + (1 - beta) * (p.exp() * (p - m)).sum()


def other_loss(model, teacher, documents, spec, kept=None):
    losses, parts = [], []
    for d, document in enumerate(documents):
        ids = document["input_ids"]
        z = logits_of(model, ids).double()
        t = spec["temperature"]
        if kept is None:
            with torch.no_grad():
                q = F.log_softmax(logits_of(teacher, ids).double() / t, -1)
        else:
            q = torch.full_like(z, -math.inf)
            for i in range(len(ids) - 1):
                entries = kept[d][i + 1]
                q[i, torch.tensor(entries["ids"])] = torch.tensor(entries["log_probs"], dtype=torch.float64)
            q[len(ids) - 1] = 0
            q = F.log_softmax(q / t, -1)
        p, plain = F.log_softmax(z / t, -1), F.log_softmax(z, -1)
        for i, label in enumerate(document["labels"][1:]):
            if label == -100:
                continue
            part = spec["weight"] * t * t * divergence(spec["kind"], p[i], q[i].detach(), spec["beta"])
            losses.append(spec["ce_weight"] * -plain[i, label] + part)
            parts.append(part)
    return torch.stack(losses).mean(), float(torch.stack(parts).mean())


def demonstrated_loss(model, rows, spec):
    """The model's predictions of its answers against those that it makes behind prompts which show more."""
    losses = []
    for row in rows:
        answer = row["answer"]
        with torch.no_grad():
            q = F.log_softmax(logits_of(model, row["shown"] + answer).double(), -1)[len(row["shown"]) - 1:-1]
        p = F.log_softmax(logits_of(model, row["prompt"] + answer).double(), -1)[len(row["prompt"]) - 1:-1]
        losses += [divergence(spec["kind"], p[i], q[i].detach(), spec["beta"]) for i in range(len(answer))]
    return torch.stack(losses).mean()


# ---- TRL ----

def word_tokenizer(vocab):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    names = {f"t{i}": i for i in range(vocab) if i not in (EOS, PAD)}
    words = Tokenizer(models.WordLevel({**names, "</s>": EOS, "<pad>": PAD}, unk_token="t1"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="<pad>")


def run_trl(kind, model, reference, rows, spec):
    """Loss, metrics and gradients by TRL's trainer, over all rows in one batch."""
    from datasets import Dataset
    model.zero_grad()
    text = lambda ids: " ".join(f"t{i}" for i in ids)
    vocab = model.config.vocab_size
    common = dict(per_device_train_batch_size=len(rows), max_length=256, report_to=[], use_cpu=True, bf16=False,
                  logging_steps=1, gradient_checkpointing=False, disable_tqdm=True, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        common["output_dir"] = folder
        if kind == "kto":
            from trl import KTOConfig, KTOTrainer
            data = Dataset.from_list([dict(prompt=text(r["prompt"]), completion=" " + text(r["answer"][:-1]),
                                           label=r["label"]) for r in rows])
            config = KTOConfig(beta=spec["beta"], desirable_weight=spec["desirable"], undesirable_weight=spec["undesirable"],
                               train_sampling_strategy="sequential", **common)
            trainer = KTOTrainer(model=model, ref_model=reference, args=config, train_dataset=data,
                                 processing_class=word_tokenizer(vocab))
        else:
            data = Dataset.from_list([dict(prompt=text(r["prompt"]), chosen=" " + text(r["chosen"][:-1]),
                                           rejected=" " + text(r["rejected"][:-1])) for r in rows])
            if kind in ("sigmoid", "hinge", "ipo"):
                from trl import DPOConfig, DPOTrainer
                trainer = DPOTrainer(model=model, ref_model=reference, args=DPOConfig(beta=spec["beta"], loss_type=kind,
                                                                                      **common),
                                     train_dataset=data, processing_class=word_tokenizer(vocab))
            elif kind == "simpo":
                from trl.experimental.cpo import CPOConfig, CPOTrainer
                config = CPOConfig(beta=spec["beta"], loss_type="simpo", simpo_gamma=spec["gamma"],
                                   cpo_alpha=spec.get("likelihood", 0.0), **common)
                trainer = CPOTrainer(model=model, args=config, train_dataset=data, processing_class=word_tokenizer(vocab))
            else:
                from trl.experimental.orpo import ORPOConfig, ORPOTrainer
                trainer = ORPOTrainer(model=model, args=ORPOConfig(beta=spec["beta"], **common), train_dataset=data,
                                      processing_class=word_tokenizer(vocab))
        model.eval()  # no dropout anywhere; TRL files its metrics under eval then
        batch = next(iter(trainer.get_train_dataloader()))
        loss = trainer.compute_loss(model, batch)
        loss.backward()
        store = getattr(trainer, "_metrics", None) or getattr(trainer, "_stored_metrics")
        logged = {name: float(torch.tensor(values, dtype=torch.float64).mean())
                  for mode in store.values() for name, values in mode.items() if values}
    return float(loss), logged, {name: p.grad.clone() for name, p in model.named_parameters()}


def run_trl_sdft(model, rows, spec):
    """Loss and gradients by TRL's trainer, answer by answer: its mean is one of answers' means, ours one of tokens."""
    from datasets import Dataset
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer
    model.zero_grad()
    alpha = {"forward": 0.0, "reverse": 1.0}.get(spec["kind"], spec["beta"])
    count = sum(len(row["answer"]) for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        config = SDFTConfig(output_dir=folder, per_device_train_batch_size=1, num_generations=1, report_to=[], use_cpu=True,
                            bf16=False, gradient_checkpointing=False, disable_tqdm=True, seed=0,
                            teacher_model_kind="live", distillation_mode="full_logits", distillation_alpha=alpha)
        trainer = SDFTTrainer(model=model, args=config, processing_class=word_tokenizer(model.config.vocab_size),
                              train_dataset=Dataset.from_list([dict(prompt="t5", privileged_context="t6")]))
        model.eval()
        total = 0.0
        for row in rows:
            ids = lambda name: torch.tensor([row[name]])
            seen = torch.tensor([row["shown"] + row["answer"]])
            loss = trainer.compute_loss(model, dict(
                prompt_ids=ids("prompt"), prompt_mask=torch.ones_like(ids("prompt")), completion_ids=ids("answer"),
                completion_mask=torch.ones_like(ids("answer")), teacher_input_ids=seen,
                teacher_attention_mask=torch.ones_like(seen))) * (len(row["answer"]) / count)
            loss.backward()
            total += float(loss)
    return total, {}, {name: p.grad.clone() for name, p in model.named_parameters()}


def compare(kind, ours, theirs, least_metrics=2):
    loss, metrics, gradients = ours
    their_loss, their_metrics, their_gradients = theirs
    assert abs(loss - their_loss) <= 1e-5 * abs(their_loss), (kind, loss, their_loss)
    seen = 0
    for name, value in metrics.items():
        if name in their_metrics:
            seen += 1
            assert abs(value - their_metrics[name]) <= 1e-5 * max(1.0, abs(value)), (kind, name, value, their_metrics[name])
    assert seen >= least_metrics, (kind, their_metrics)
    for name, gradient in gradients.items():
        other = their_gradients[name].double()
        error = float((gradient - other).norm() / max(other.norm(), 1e-12))
        assert error <= 1e-5, (kind, name, error)
    print(f"  {kind}: as TRL has it: loss {loss:.6f}, {seen} metrics, {len(gradients)} gradients")


# ---- the cases of a model ----

def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.detach().clone() for name, p in model.named_parameters()}


def make(name, wanted):
    folder = OUT / name
    folder.mkdir(parents=True)
    model = load(name)
    vocab = model.config.vocab_size
    generator = torch.Generator().manual_seed(20)
    reference = load(name)
    with torch.no_grad():
        for p in reference.parameters():
            p += 0.05 * p.std().nan_to_num(1.0) * torch.randn(p.shape, generator=generator)
    pairs = [dict(prompt=tokens(generator, vocab, 2, 9), chosen=tokens(generator, vocab, 1, 12) + [EOS],
                  rejected=tokens(generator, vocab, 1, 12) + [EOS]) for _ in range(5)]
    judged = [dict(prompt=tokens(generator, vocab, 2, 9), answer=tokens(generator, vocab, 1, 12) + [EOS], label=good)
              for good in (True, False, True, True, False)]
    documents = []
    for _ in range(4):
        ids = tokens(generator, vocab, 5, 19)
        labels = [-100 if i == 0 or int(torch.randint(0, 4, (1,), generator=generator)) == 0 else t
                  for i, t in enumerate(ids)]
        documents.append(dict(input_ids=ids, labels=labels))
    wide, wide_reference = load(name).double(), load(name).double()
    wide_reference.load_state_dict({k: v.double() for k, v in reference.state_dict().items()})
    result = dict(model=name, documents=documents, pairs=[], judged=[], cases={})

    with torch.no_grad():
        for row in pairs:
            row["chosen_reference"] = float(answer_log_probs(wide_reference, row["prompt"], row["chosen"])[0].sum())
            row["rejected_reference"] = float(answer_log_probs(wide_reference, row["prompt"], row["rejected"])[0].sum())
        for i, row in enumerate(judged):
            row["mismatched"] = judged[i - 1]["answer"]
            row["reference"] = float(answer_log_probs(wide_reference, row["prompt"], row["answer"])[0].sum())
            row["mismatched_reference"] = float(answer_log_probs(wide_reference, row["prompt"], row["mismatched"])[0].sum())
    result["pairs"], result["judged"] = pairs, judged

    def keep(case, settings, loss, metrics, grads):
        save_file({f"grad.{key}": value.float().contiguous() for key, value in grads.items()},
                  folder / f"{case}.safetensors")
        result["cases"][case] = dict(settings=settings, loss=float(loss), metrics=metrics)
        print(f"{name}: {case}: {float(loss):.6f}")

    preferences = {
        "dpo": ("sigmoid", dict(beta=BETA), True),
        "dpo_smooth": ("sigmoid", dict(beta=BETA, label_smoothing=0.2), False),
        "dpo_rpo": ("sigmoid", dict(beta=BETA, likelihood=0.7), False),
        "dpo_hinge": ("hinge", dict(beta=BETA), True),
        "ipo": ("ipo", dict(beta=BETA), True),
        "simpo": ("simpo", dict(beta=2.0, gamma=0.5), True),
        "simpo_cpo": ("simpo", dict(beta=2.0, gamma=0.5, likelihood=0.6), True),
        "orpo": ("orpo", dict(beta=0.4, likelihood=1.0), True),
    }
    for case, (kind, spec, in_trl) in preferences.items():
        if case not in wanted:
            continue
        sums = ([answer_log_probs(wide, r["prompt"], r["chosen"]) for r in pairs],
                [answer_log_probs(wide, r["prompt"], r["rejected"]) for r in pairs],
                [r["chosen_reference"] for r in pairs], [r["rejected_reference"] for r in pairs])
        loss, metrics = preference_loss(kind, sums, spec)
        grads = gradients(wide, loss)
        if in_trl:
            compare(kind, (float(loss), metrics, grads), run_trl(kind, model, reference, pairs, spec))
        keep(case, dict(kind=kind, **spec), loss, metrics, grads)
    if "kto" in wanted:
        spec = dict(beta=BETA, desirable=1.0, undesirable=1.5)
        loss, metrics = kto_loss([answer_log_probs(wide, r["prompt"], r["answer"]) for r in judged],
                                 [answer_log_probs(wide, r["prompt"], r["mismatched"]) for r in judged],
                                 [r["label"] for r in judged], [r["reference"] for r in judged],
                                 [r["mismatched_reference"] for r in judged], spec)
        grads = gradients(wide, loss)
        compare("kto", (float(loss), metrics, grads), run_trl("kto", model, reference, judged, spec))
        keep("kto", dict(kind="kto", **spec), loss, metrics, grads)
    for case, rule in RULES.items():
        if case in wanted:
            loss = token_loss(wide, documents, rule)
            keep(case, dict(rule=case), loss, {}, gradients(wide, loss))

    demonstrated = {
        "sdft_forward": dict(kind="forward", beta=0.0),
        "sdft_reverse": dict(kind="reverse", beta=1.0),
        "sdft_jsd": dict(kind="jensen_shannon", beta=0.3),
    }
    generator.manual_seed(21)
    result["demonstrated"] = [dict(prompt=tokens(generator, vocab, 2, 9), shown=tokens(generator, vocab, 1, 15),
                                   answer=tokens(generator, vocab, 1, 12) + [EOS]) for _ in range(5)]
    for case, spec in demonstrated.items():
        if case in wanted:
            loss = demonstrated_loss(wide, result["demonstrated"], spec)
            grads = gradients(wide, loss)
            compare(case, (float(loss), {}, grads), run_trl_sdft(model, result["demonstrated"], spec), 0)
            keep(case, dict(shown=True, temperature=1.0, weight=1.0, ce_weight=0.0, **spec), loss,
                 {"divergence": float(loss)}, grads)

    if not any(case.startswith("kd") for case in wanted):
        (folder / "cases.json").write_text(json.dumps(result) + "\n")
        return
    teacher = teacher_of(vocab).double()
    with torch.no_grad():
        kept = []
        for document in documents:
            log_probs = F.log_softmax(logits_of(teacher, document["input_ids"]), -1)
            entries = [dict(ids=[], log_probs=[])]
            for row in log_probs[:-1]:
                top = torch.topk(row, 7)
                entries.append(dict(ids=top.indices.tolist(), log_probs=top.values.float().tolist()))
            kept.append(entries)
    result["kept"] = kept
    others = {
        "kd_forward": dict(kind="forward", beta=0.0, temperature=1.0, weight=1.0, ce_weight=0.0),
        "kd_reverse": dict(kind="reverse", beta=0.0, temperature=1.0, weight=0.5, ce_weight=1.0),
        "kd_jsd": dict(kind="jensen_shannon", beta=0.3, temperature=1.0, weight=1.0, ce_weight=0.25),
        "kd_forward_hot": dict(kind="forward", beta=0.0, temperature=2.0, weight=0.9, ce_weight=0.1),
        "kd_jsd_hot": dict(kind="jensen_shannon", beta=0.7, temperature=1.5, weight=1.0, ce_weight=0.0),
        "kd_kept": dict(kind="forward", beta=0.0, temperature=1.0, weight=0.9, ce_weight=0.1),
        "kd_kept_jsd": dict(kind="jensen_shannon", beta=0.5, temperature=2.0, weight=1.0, ce_weight=0.0),
    }
    for case, spec in others.items():
        if case in wanted:
            loss, part = other_loss(wide, teacher, documents, spec, kept if "kept" in case else None)
            keep(case, spec, loss, {"divergence": part}, gradients(wide, loss))
    (folder / "cases.json").write_text(json.dumps(result) + "\n")


def teacher_of(vocab):
    folder = OUT / f"teacher_{vocab}"
    if not folder.exists():
        torch.manual_seed(7)
        config = LlamaConfig(vocab_size=vocab, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=128,
                             tie_word_embeddings=False, initializer_range=0.3, bos_token_id=1, eos_token_id=EOS,
                             pad_token_id=PAD)
        LlamaForCausalLM(config).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    torch.set_num_threads(1)
    every = ["dpo", "dpo_smooth", "dpo_rpo", "dpo_hinge", "ipo", "simpo", "simpo_cpo", "orpo", "kto", *RULES,
             "kd_forward", "kd_reverse", "kd_jsd", "kd_forward_hot", "kd_jsd_hot", "kd_kept", "kd_kept_jsd",
             "sdft_forward", "sdft_reverse", "sdft_jsd"]
    make("llama_linear_sharded", every)
    # Tied, with softcaps.
    make("gemma2_softcaps", ["dpo", "orpo", "dft", "eaft", "talr", "kd_forward", "kd_jsd_hot", "sdft_reverse"])


if __name__ == "__main__":
    main()
