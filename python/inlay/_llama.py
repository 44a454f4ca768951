"""inlay.torch.patch_llama: models of transformers, of which loss and MLP are computed by Inlay."""

import functools
import inspect

import torch

from . import _inlay
from .torch import fused_linear_cross_entropy, swiglu_mlp

# Those whose loss is known to be the cross entropy of lm_head(model.model(...)), scaled and capped as _loss says.
_families = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "olmo3", "granite", "gemma", "gemma2", "gemma3_text",
             "phi3"}
_projections = "gate_proj", "up_proj", "down_proj"


def patch(model, loss, mlp, tile, keep):
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT calls what it wraps
    kind = getattr(getattr(base, "config", None), "model_type", None)
    if kind not in _families or not hasattr(base, "model") or not hasattr(base, "lm_head"):
        raise TypeError(f"{type(base).__name__}: patch_llama knows causal models of {', '.join(sorted(_families))}; "
                        "fused_linear_cross_entropy and swiglu_mlp can be called from any model's code")
    modules = [module for module in base.modules() if all(hasattr(module, name) for name in _projections)] if mlp else []
    if mlp and not modules:
        raise _inlay.UserError(f"{type(base).__name__} has no MLP of {', '.join(_projections)}; mlp=False patches the loss "
                               "alone")
    # A model is patched as a whole or not at all.
    for module in modules:
        _check_mlp(module)
    if loss:
        _check_head(base.lm_head)
    for module in modules:
        _replace_forward(module, _mlp_forward, tile, keep)
    if loss:
        _replace_forward(base, _loss_forward, list(inspect.signature(base.forward).parameters))
    return model


def _replace_forward(module, function, *given):
    """Puts function(module, its forward so far, *given, ...) in its place. Not by a closure: a copy of the module, such as
    the reference of a preference loss, is to compute with its own weights."""
    plain = module.forward
    module.forward = functools.update_wrapper(functools.partial(function, module, plain, *given), plain)


def _is_plain(linear):
    """Whether a layer does no more than to multiply by its matrix: no adapters, no quantised weights, no hooks."""
    return (type(linear) is torch.nn.Linear and "forward" not in vars(linear) and not linear._forward_hooks and
            not linear._forward_pre_hooks and not linear._backward_hooks and not linear._backward_pre_hooks)


def _check_mlp(module):
    if type(module.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        raise _inlay.UserError(f"{type(module).__name__} uses {type(module.act_fn).__name__}: only SwiGLU can be patched; "
                               "mlp=False patches the loss alone")
    for name in _projections:
        linear = getattr(module, name)
        if not isinstance(linear, torch.nn.Linear) and hasattr(linear, "base_layer"):
            linear = linear.base_layer  # adapters: the module's own code serves them, until they are merged
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"{name} of {type(module).__name__} is a {type(linear).__name__}: only linear layers can be "
                            "patched; mlp=False patches the loss alone")
        if not linear.weight.is_floating_point():
            raise TypeError(f"{name} of {type(module).__name__} holds {linear.weight.dtype}: quantised weights cannot be "
                            "patched; mlp=False patches the loss alone")
        if linear.bias is not None:
            raise _inlay.UserError(f"{name} of {type(module).__name__} has a bias: only SwiGLU without biases can be patched; "
                                   "mlp=False patches the loss alone")


def _check_head(head):
    weight = getattr(head, "weight", None)
    if weight is not None and not weight.is_floating_point():
        raise TypeError(f"lm_head holds {weight.dtype}: quantised weights cannot be patched; keep the head out of "
                        "quantisation, or loss=False")


def _mlp_forward(module, plain, tile, keep, x):
    # Looked up at each call: adapters may have come and gone.
    linears = [getattr(module, name) for name in _projections]
    if not all(map(_is_plain, linears)):
        return plain(x)
    return swiglu_mlp(x, *(linear.weight for linear in linears), tile, keep)


def _loss_forward(model, plain, names, /, *args, **kwargs):
    kwargs.update(zip(names, args))
    if kwargs.get("labels") is None or not _is_plain(model.lm_head):
        return plain(**kwargs)
    labels, shifted = kwargs.pop("labels"), kwargs.pop("shift_labels", None)
    count, ignored = kwargs.pop("num_items_in_batch", None), kwargs.pop("ignore_index", -100)
    as_dict = kwargs.pop("return_dict", None)
    kwargs.pop("logits_to_keep", None)
    out = model.model(**kwargs, return_dict=True)
    if shifted is None:
        shifted = torch.nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]
    total = _loss(model, out.last_hidden_state, shifted.reshape(-1).to(out.last_hidden_state.device), ignored, count)
    from transformers.modeling_outputs import CausalLMOutputWithPast

    rest = {name: getattr(out, name, None) for name in ("past_key_values", "hidden_states", "attentions")}
    result = CausalLMOutputWithPast(loss=total, **rest)
    return result if as_dict or (as_dict is None and model.config.return_dict) else result.to_tuple()


def _loss(model, hidden, targets, ignored, count):
    head, config = model.lm_head, model.config
    hidden, bias = hidden.reshape(-1, hidden.shape[-1]), head.bias
    divisor = getattr(config, "logits_scaling", None) or 1.0  # Granite: logits are divided by it
    if divisor != 1.0:
        hidden, bias = hidden / divisor, None if bias is None else bias / divisor
    total = fused_linear_cross_entropy(hidden, head.weight, targets, bias, ignore_index=ignored,
                                       reduction="mean" if count is None else "sum",
                                       softcap=getattr(config, "final_logit_softcapping", None))
    return total if count is None else total / count
