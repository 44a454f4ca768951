"""The peer of `inlay bench train_step`: one training step of a Hugging Face model in PyTorch.

    python bench/compare/train_step.py --config config.json --documents 8 --length 256 --device cpu --optimizer adamw
    python bench/compare/train_step.py --config config.json --length 16384 --device cuda --checkpointing
    python bench/compare/train_step.py --config config.json --length 16384 --lora 16 --checkpointing --optimizer adamw
    python bench/compare/train_step.py --config gemma-3-4b/config.json --length 8192 --optimizer adamw --checkpointing \
        --attention flash_attention_2  # config.json: inlay init --preset gemma-3-4b --no-weights gemma-3-4b
    python bench/compare/train_step.py --config config.json --length 16384 --checkpointing --compile --fp8 tensorwise

The model is made from the configuration with random weights. N documents of equal length are a batch of N rows, so
nothing is padded. What people use today is switched on: Liger's kernels where liger_kernel is installed, cuDNN
attention on CUDA, fused AdamW. On CUDA the weights are bf16; on a CPU bf16 means fp32 weights under autocast (--pure:
bf16 weights). Prints one JSON object: median milliseconds, tokens a second, bytes at the peak.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import sys
import time

# Virtual machines that hide half of AMX make oneDNN fail in bf16. --allow-amx leaves the choice to oneDNN.
if "--allow-amx" not in sys.argv:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import transformers


# Attention that transformers does not take from torch's scaled_dot_product_attention; these know windows without a mask.
PACKAGES = ["flash_attention_2", "flash_attention_3", "flex_attention"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a config.json")
    parser.add_argument("--documents", type=int, default=1)
    parser.add_argument("--length", type=int, required=True, help="tokens of a document")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--checkpointing", action="store_true", help="recompute every layer in backward")
    parser.add_argument("--optimizer", choices=["none", "adamw"], default="none")
    parser.add_argument("--steps", type=int, default=10, help="measured steps, after --warmup")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's own choice)")
    parser.add_argument("--pure", action="store_true", help="bf16 weights on a CPU, instead of autocast")
    parser.add_argument("--no-liger", action="store_true")
    parser.add_argument("--attention", choices=["cudnn", "flash", "default", *PACKAGES], default="cudnn",
                        help="on CUDA: a backend of PyTorch's own attention, or a package, which knows windows without a mask")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--fp8", choices=["tensorwise", "rowwise", "rowwise_with_gw_hp"],
                        help="a recipe of torchao's fp8 training for every linear layer but the head; wants --compile")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="PEFT's LoRA on all linear layers")
    parser.add_argument("--layers", type=int, help="instead of the configuration's own number")
    parser.add_argument("--allow-amx", action="store_true", help="do not cap oneDNN's instruction set")
    return parser.parse_args()


def make_model(arguments, liger):
    config = transformers.AutoConfig.from_pretrained(arguments.config)
    if arguments.layers:
        config.num_hidden_layers = arguments.layers
    config.use_cache = False
    pure = arguments.dtype == "bf16" and (arguments.device == "cuda" or arguments.pure)
    if liger:
        from liger_kernel.transformers import AutoLigerKernelForCausalLM as Model  # patches the family on the way
    else:
        from transformers import AutoModelForCausalLM as Model
    torch.manual_seed(0)
    with torch.device(arguments.device):
        attention = arguments.attention if arguments.attention in PACKAGES else "sdpa"
        model = Model.from_config(config, dtype=torch.bfloat16 if pure else torch.float32, attn_implementation=attention)
    model.train()
    if arguments.lora:
        import peft

        if arguments.checkpointing:
            model.enable_input_require_grads()
        adapter = peft.LoraConfig(r=arguments.lora, lora_alpha=2 * arguments.lora, target_modules="all-linear")
        model = peft.get_peft_model(model, adapter)
    if arguments.fp8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        recipe = Float8LinearConfig.from_recipe_name(arguments.fp8)
        convert_to_float8_training(model, config=recipe, module_filter_fn=lambda _, name: "lm_head" not in name)
    if arguments.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, config


def attention_context(arguments):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if arguments.device != "cuda" or arguments.attention in ["default", *PACKAGES]:
        return contextlib.nullcontext()
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION if arguments.attention == "cudnn" else SDPBackend.FLASH_ATTENTION)


def main():
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    cuda = arguments.device == "cuda"
    liger = cuda and not arguments.no_liger and importlib.util.find_spec("liger_kernel") is not None
    model, config = make_model(arguments, liger)
    optimizer = None
    if arguments.optimizer == "adamw":
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(1)
    shape = (arguments.documents, arguments.length)
    ids = torch.randint(0, config.vocab_size, shape, generator=generator).to(arguments.device)
    autocast = arguments.dtype == "bf16" and not cuda and not arguments.pure
    run = torch.compile(model) if arguments.compile else model

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), attention_context(arguments):
            loss = run(input_ids=ids, labels=ids).loss
            loss.backward()
        if optimizer:
            optimizer.step()
        # Gradients stay allocated between steps, as ours do.
        model.zero_grad(set_to_none=False)
        return loss.detach()

    def wait():
        if cuda:
            torch.cuda.synchronize()

    for _ in range(arguments.warmup):
        loss = step()
    wait()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    milliseconds = []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        loss = step()
        wait()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    median = statistics.median(milliseconds)
    tokens = arguments.documents * arguments.length
    if cuda:
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({
        "peer": "transformers" + (" + peft" if arguments.lora else "") + (" + liger" if liger else "")
                + (f" + torchao {arguments.fp8}" if arguments.fp8 else "") + (" + compile" if arguments.compile else ""),
        "ms": round(median, 3), "ms_min": round(min(milliseconds), 3), "ms_max": round(max(milliseconds), 3),
        "tokens_per_second": round(1e3 * tokens / median, 1),
        "peak_bytes": peak,
        "model_type": config.model_type, "parameters": model.num_parameters(), "layers": config.num_hidden_layers,
        "documents": arguments.documents, "length": arguments.length, "device": arguments.device,
        "dtype": arguments.dtype + (" autocast" if autocast else ""), "checkpointing": arguments.checkpointing,
        "lora": arguments.lora, "optimizer": arguments.optimizer, "attention": arguments.attention if cuda else "sdpa",
        "steps": arguments.steps, "threads": torch.get_num_threads(), "loss": round(loss.item(), 6),
        "torch": torch.__version__, "transformers": transformers.__version__}))


if __name__ == "__main__":
    main()
