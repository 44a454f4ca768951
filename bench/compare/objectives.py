"""The peers of `inlay bench train-step --objective` and `inlay bench fused-linear-ce --divergence`.

    python bench/compare/objectives.py step --config config.json --objective dpo --peer trl --pairs 4 --length 2048
    python bench/compare/objectives.py step --config config.json --objective dpo --peer liger --pairs 4 --length 2048
    python bench/compare/objectives.py step --config config.json --objective kd-jsd --peer liger --pairs 4 --length 2048
    python bench/compare/objectives.py head --objective jsd --tokens 16384 --hidden 4096 --vocab 128256

step: a training step of a model made from the configuration with random weights: forward, backward and fused AdamW.
dpo: so many pairs of sequences of one length, every token of which counts; the reference's log-probabilities are given, as
ours are. --peer trl is TRL's DPOTrainer as it is (its own compute_loss), with Liger's kernels in the layers where
liger_kernel is installed; --peer liger is transformers with LigerFusedLinearDPOLoss. kd-forward, kd-reverse, kd-jsd: a teacher
of the same shape; --peer trl computes the divergence over logits as TRL's GKD trainer does, --peer liger takes
LigerFusedLinearJSD. head: Liger's fused head and divergence alone, with gradients of both the hidden states and the head.
Prints one JSON object: median milliseconds, tokens a second, bytes at the peak. A GPU is wanted; TRL's step also runs on
a CPU with a small configuration.
"""

import argparse
import json
import statistics
import time

import torch


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    step = commands.add_parser("step")
    step.add_argument("--config", required=True, help="a config.json")
    step.add_argument("--objective", choices=["dpo", "kd-forward", "kd-reverse", "kd-jsd"], required=True)
    step.add_argument("--peer", choices=["trl", "liger"], required=True)
    step.add_argument("--pairs", type=int, default=2, help="of sequences; distillation takes twice as many sequences")
    step.add_argument("--length", type=int, default=2048)
    step.add_argument("--checkpointing", action="store_true")
    step.add_argument("--lora", type=int, default=0, metavar="RANK")
    step.add_argument("--layers", type=int)
    head = commands.add_parser("head")
    head.add_argument("--objective", choices=["forward", "reverse", "jsd"], required=True)
    head.add_argument("--tokens", type=int, default=16384)
    head.add_argument("--hidden", type=int, default=4096)
    head.add_argument("--vocab", type=int, default=128256)
    for command in (step, head):
        command.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
        command.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
        command.add_argument("--steps", type=int, default=10, help="measured, after --warmup")
        command.add_argument("--warmup", type=int, default=3)
    return parser.parse_args()


def measure(arguments, step):
    """Median, least and most milliseconds, and bytes at the peak."""
    cuda = arguments.device == "cuda"

    def wait():
        if cuda:
            torch.cuda.synchronize()

    for _ in range(arguments.warmup):
        step()
    wait()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    milliseconds = []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        step()
        wait()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return dict(ms=round(statistics.median(milliseconds), 3), ms_min=round(min(milliseconds), 3),
                ms_max=round(max(milliseconds), 3), peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0)


def dtype_of(arguments):
    return torch.bfloat16 if arguments.dtype == "bf16" else torch.float32


def make_model(arguments, trains=True):
    import importlib.util

    import transformers
    config = transformers.AutoConfig.from_pretrained(arguments.config)
    if arguments.layers:
        config.num_hidden_layers = arguments.layers
    config.use_cache = False
    liger = arguments.device == "cuda" and importlib.util.find_spec("liger_kernel") is not None
    if liger:
        from liger_kernel.transformers import AutoLigerKernelForCausalLM as Model
    else:
        from transformers import AutoModelForCausalLM as Model
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = Model.from_config(config, dtype=dtype_of(arguments), attn_implementation="sdpa")
    if not trains:
        return model.eval().requires_grad_(False), config, liger
    if arguments.lora:
        import peft
        if arguments.checkpointing:
            model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(r=arguments.lora, lora_alpha=2 * arguments.lora,
                                                           target_modules="all-linear"))
    if arguments.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train(), config, liger


def parts_of(model):
    """The decoder without its head, and the head's weight."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.model, base.lm_head.weight


def trl_dpo(arguments, model, ids):
    """TRL's own loss over a batch as its collator makes it: chosen sequences first, then rejected ones."""
    import tempfile

    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer
    # The trainer wants a reference model; nobody asks it anything.
    idle = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                        num_attention_heads=1))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a")),
                                        eos_token="</s>", pad_token="</s>")
    rows = Dataset.from_list([dict(prompt="a", chosen="a", rejected="a", ref_chosen_logps=0.0, ref_rejected_logps=0.0)] * 2)
    config = DPOConfig(output_dir=tempfile.mkdtemp(), report_to=[], precompute_ref_log_probs=False, bf16=False,
                       use_cpu=arguments.device == "cpu", gradient_checkpointing=arguments.checkpointing)
    trainer = DPOTrainer(model=model, ref_model=idle, args=config, train_dataset=rows,
                         processing_class=tokenizer)
    trainer.precompute_ref_logps = True
    mask = torch.ones_like(ids)
    mask[:, 0] = 0
    reference = torch.full((arguments.pairs,), -float(arguments.length), device=ids.device)
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids), completion_mask=mask,
                 ref_chosen_logps=reference, ref_rejected_logps=reference)
    return lambda: trainer._compute_loss(model, batch, False)


def liger_dpo(arguments, model, ids):
    from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss
    loss = LigerFusedLinearDPOLoss(beta=0.1, use_ref_model=False, compute_nll_loss=False)
    decoder, weight = parts_of(model)
    labels = ids[:, 1:]

    def compute():
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        return loss(weight, hidden, labels)[0]

    return compute


def trl_distillation(arguments, model, teacher, ids):
    """As trl.experimental.gkd has it: both models' logits, and the generalised divergence over them."""
    from trl.experimental.gkd import GKDTrainer
    beta = {"kd-forward": 0.0, "kd-reverse": 1.0, "kd-jsd": 0.5}[arguments.objective]

    def compute():
        with torch.no_grad():
            theirs = teacher(input_ids=ids, use_cache=False).logits[:, :-1]
        ours = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return GKDTrainer.generalized_jsd_loss(ours, theirs, labels=ids[:, 1:], beta=beta)

    return compute


def liger_distillation(arguments, model, teacher, ids):
    from liger_kernel.transformers import LigerFusedLinearJSD
    beta = {"kd-forward": 0.0, "kd-reverse": 1.0, "kd-jsd": 0.5}[arguments.objective]
    jsd = LigerFusedLinearJSD(jsd_beta=beta)
    decoder, weight = parts_of(model)
    teacher_decoder, teacher_weight = parts_of(teacher)

    def compute():
        with torch.no_grad():
            theirs = teacher_decoder(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
        ours = decoder(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
        return jsd(ours, weight, theirs, teacher_weight, ids[:, 1:].flatten())

    return compute


def run_step(arguments):
    model, config, liger = make_model(arguments)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (2 * arguments.pairs, arguments.length), generator=generator)
    ids = ids.to(arguments.device)
    if arguments.objective == "dpo":
        compute = (trl_dpo if arguments.peer == "trl" else liger_dpo)(arguments, model, ids)
    else:
        teacher, _, _ = make_model(arguments, trains=False)
        make = trl_distillation if arguments.peer == "trl" else liger_distillation
        compute = make(arguments, model, teacher, ids)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6, fused=True)

    def step():
        compute().backward()
        optimizer.step()
        model.zero_grad(set_to_none=False)

    figures = measure(arguments, step)
    tokens = ids.numel()
    return dict(peer=arguments.peer + (" + liger's kernels" if liger and arguments.peer == "trl" else ""), **figures,
                tokens_per_second=round(1e3 * tokens / figures["ms"], 1), objective=arguments.objective,
                sequences=2 * arguments.pairs, length=arguments.length, checkpointing=arguments.checkpointing,
                lora=arguments.lora, layers=config.num_hidden_layers)


def run_head(arguments):
    from liger_kernel.transformers import LigerFusedLinearJSD
    beta = {"forward": 0.0, "reverse": 1.0, "jsd": 0.5}[arguments.objective]
    jsd = LigerFusedLinearJSD(jsd_beta=beta)
    made = lambda *shape: torch.randn(*shape, device=arguments.device, dtype=dtype_of(arguments))
    hidden, weight = made(arguments.tokens, arguments.hidden).requires_grad_(), (0.02 * made(arguments.vocab, arguments.hidden)).requires_grad_()
    others, other_weight = made(arguments.tokens, arguments.hidden), 0.02 * made(arguments.vocab, arguments.hidden)
    labels = torch.randint(0, arguments.vocab, (arguments.tokens,), device=arguments.device)

    def step():
        jsd(hidden, weight, others, other_weight, labels).backward()
        hidden.grad = weight.grad = None

    figures = measure(arguments, step)
    return dict(peer="liger", **figures, objective=arguments.objective, tokens=arguments.tokens, hidden=arguments.hidden,
                vocab=arguments.vocab)


def main():
    arguments = parse_arguments()
    report = run_step(arguments) if arguments.command == "step" else run_head(arguments)
    print(json.dumps({**report, "device": arguments.device, "dtype": arguments.dtype, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
