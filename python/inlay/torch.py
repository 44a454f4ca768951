"""Inlay's operations as PyTorch autograd functions, on the caller's stream and in the caller's memory.

Activations and weights are float32 or bfloat16 (the loss takes float16, too) and contiguous in their last dimension;
gradients of weights are summed up in float32 and rounded once. Under autocast all of them are what autocast says; where
that is float16, only the loss is, and the others compute in float32. All work on CPUs and, where Inlay was built with CUDA,
on GPUs.
"""

import threading
from typing import NamedTuple, Optional

import torch

from . import _inlay

_types = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int64: 4, torch.int32: 5}
_reductions = {"mean": 0, "sum": 1, "none": 2}
_shared = {}  # of GPUs: one per device
_own = threading.local()  # of the CPU: one per thread


def _ops(device):
    if device.type == "cpu":
        if not hasattr(_own, "ops"):
            _own.ops = _inlay.Ops(False)
        return _own.ops
    if device not in _shared:
        with torch.cuda.device(device):
            _shared[device] = _inlay.Ops(True)
    return _shared[device]


def _tensor(tensor):
    if tensor is None:
        return None
    if tensor.dtype not in _types:
        raise TypeError(f"a tensor {tuple(tensor.shape)} of {tensor.dtype}: expected float32 or bfloat16; quantised weights "
                        "must be dequantised first")
    return tensor.data_ptr(), _types[tensor.dtype], tuple(tensor.shape), tensor.stride()


def _run(name, device, *arguments, **tensors):
    """Calls an op on the current stream, with scratch from PyTorch's allocator."""
    scratch = []

    def take(size):
        scratch.append(torch.empty(size, dtype=torch.uint8, device=device))
        return scratch[0].data_ptr()

    named = {key: _tensor(value) if isinstance(value, torch.Tensor) else value for key, value in tensors.items()
             if value is not None}
    if device.type == "cpu":
        return getattr(_ops(device), name)(0, take, *arguments, **named)
    with torch.cuda.device(device):
        return getattr(_ops(device), name)(torch.cuda.current_stream().cuda_stream, take, *arguments, **named)


def _autocast(*tensors, half=False):
    """In the type that autocast says, where it is on. half: float16 will do."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    if dtype == torch.float16 and not half:
        dtype = torch.float32
    wanted = lambda x: x is not None and x.is_floating_point() and x.dtype != torch.float64
    return tuple(x.to(dtype) if wanted(x) else x for x in tensors)


def _rows(tensor):
    """As the ops need it: neighbours in the last dimension are neighbours in memory."""
    return tensor if tensor.stride(-1) == 1 and tensor.dim() > 1 else tensor.contiguous()


def _like(gradient, parameter):
    """A float32 gradient in the parameter's type."""
    return None if gradient is None else gradient.to(parameter.dtype)


# ---- the loss -----------------------------------------------------------------------------------------------------


class CrossEntropyOutput(NamedTuple):
    loss: torch.Tensor
    z_loss: Optional[torch.Tensor] = None
    token_accuracy: Optional[torch.Tensor] = None
    predicted_tokens: Optional[torch.Tensor] = None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, rows, class_weights, token_weights, options):
        ctx.options = options
        none = options["reduction"] == _reductions["none"]
        losses = hidden.shape[0] if none else 1
        new = lambda dtype, *shape: torch.zeros(shape, dtype=dtype, device=hidden.device)
        out = {"loss": new(torch.float32, losses)}
        if options["return_z_loss"]:
            out["loss_of_z"] = new(torch.float32, losses)
        if options["return_token_accuracy"]:
            out["correct"] = new(torch.int32, 1)
        if options["return_predicted_tokens"]:
            out["predicted"] = new(torch.int32, hidden.shape[0])
        inputs = {"hidden": hidden, "weight": weight, "bias": bias, "targets": targets, "rows": rows,
                  "class_weights": class_weights, "token_weights": token_weights}
        gradients = {}
        if not none:  # what one number is multiplied by later can be computed now
            gradients = _gradients(ctx.needs_input_grad, hidden, weight, bias)
        _run("linear_cross_entropy", hidden.device, **inputs, **out, **gradients, **_settings(options))
        if none:
            ctx.save_for_backward(*inputs.values())
        else:
            ctx.save_for_backward(*(gradients.get(name) for name in ("dhidden", "dweight", "dbias")))
        ctx.parameters = weight.dtype, None if bias is None else bias.dtype
        shape = (lambda tensor: tensor) if none else (lambda tensor: None if tensor is None else tensor.reshape(()))
        result = shape(out["loss"]), shape(out.get("loss_of_z")), out.get("correct"), out.get("predicted")
        ctx.mark_non_differentiable(*(tensor for tensor in result[1:] if tensor is not None))
        return result

    @staticmethod
    def backward(ctx, dloss, *_):
        if ctx.options["reduction"] != _reductions["none"]:
            dhidden, dweight, dbias = ctx.saved_tensors
            dloss = dloss.float()
            scaled = lambda tensor, dtype: None if tensor is None else torch.mul(
                tensor, dloss, out=torch.empty_like(tensor, dtype=dtype))
            return (scaled(dhidden, None if dhidden is None else dhidden.dtype), scaled(dweight, ctx.parameters[0]),
                    scaled(dbias, ctx.parameters[1]), *([None] * 5))
        names = "hidden", "weight", "bias", "targets", "rows", "class_weights", "token_weights"
        inputs = dict(zip(names, ctx.saved_tensors))
        gradients = _gradients(ctx.needs_input_grad, inputs["hidden"], inputs["weight"], inputs["bias"])
        _run("linear_cross_entropy", dloss.device, **inputs, **gradients, upstream=dloss.float().contiguous(),
             **_settings(ctx.options))
        return (gradients.get("dhidden"), _like(gradients.get("dweight"), inputs["weight"]),
                _like(gradients.get("dbias"), inputs["bias"]), *([None] * 5))


def _gradients(wanted, hidden, weight, bias):
    names = ("dhidden", hidden, hidden.dtype), ("dweight", weight, torch.float32), ("dbias", bias, torch.float32)
    return {name: torch.empty_like(like, dtype=dtype) for (name, like, dtype), wants in zip(names, wanted) if wants}


def _settings(options):
    return {key: value for key, value in options.items() if not key.startswith("return_")}


def fused_linear_cross_entropy(input, weight, target, bias=None, ce_weight=None, ignore_index=-100,
                               lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None,
                               return_z_loss=False, accum_dtype=None, use_token_scaling=False,
                               return_token_accuracy=False, return_predicted_tokens=False, chunk_mem_const=1):
    """The cross entropy of input · weightᵀ (+ bias), without ever holding all logits. Liger's call, in its order.

    input [T, H], weight [V, H], target [T]. Rows that are ignored cost nothing: they are left out of all products.
    Gradients of weight and bias are always summed up in float32, so accum_dtype may be None or torch.float32.
    label_smoothing must be below 1. use_token_scaling takes one more pass forward. Returns the loss, or with any
    return_... a CrossEntropyOutput; as in Liger token_accuracy is per token with reduction "none" and the mean over
    counted tokens otherwise, and predicted_tokens is -1 where the target is ignored.
    """
    if accum_dtype not in (None, torch.float32):
        raise _inlay.UserError(f"accum_dtype: gradients are summed up in float32; {accum_dtype} is not supported")
    if reduction not in _reductions:
        raise _inlay.UserError(f"reduction: expected mean, sum or none, got {reduction!r}")
    if softcap is not None and not softcap > 0:
        raise _inlay.UserError(f"softcap: expected a number above 0, or None, got {softcap}")
    hidden, weight, bias = _autocast(input, weight, bias, half=True)
    hidden, weight = _rows(hidden), _rows(weight)
    if target.shape != hidden.shape[:1]:
        raise _inlay.UserError(f"target is {tuple(target.shape)}, expected {tuple(hidden.shape[:1])}")
    counted = target != ignore_index
    rows = counted.nonzero().flatten().int()
    every = rows.numel() == target.numel()
    targets = (target if every else target.masked_fill(~counted, 0)).int()
    chosen = targets[rows.long()] if not every else targets
    if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < weight.shape[0]:
        raise _inlay.UserError(f"target: expected {ignore_index} or 0 to {weight.shape[0] - 1}, got "
                               f"{int(chosen.min())} to {int(chosen.max())}")
    options = {"reduction": _reductions[reduction], "label_smoothing": label_smoothing, "softcap": softcap or 0.0,
               "z_loss": lse_square_scale, "return_z_loss": return_z_loss,
               "return_token_accuracy": return_token_accuracy and reduction != "none",
               "return_predicted_tokens": return_predicted_tokens or (return_token_accuracy and reduction == "none")}
    if chunk_mem_const != 1:
        rows_at_once = _ops(hidden.device).loss_chunk_rows(_types[hidden.dtype], weight.shape[0], hidden.shape[0])
        options["chunk_rows"] = max(1, int(chunk_mem_const * rows_at_once))
    shared = (targets, None if every else rows, None if ce_weight is None else ce_weight.detach().float().contiguous())
    token_weights = None
    if use_token_scaling:
        plain = {"reduction": _reductions["none"], "softcap": softcap or 0.0, "return_z_loss": False,
                 "return_token_accuracy": False, "return_predicted_tokens": False}
        with torch.no_grad():
            losses = _LinearCrossEntropy.apply(hidden, weight, bias, *shared[:2], None, None, plain)[0]
            token_weights = torch.exp(-losses)
        if ce_weight is None:
            options["normalizer"] = float(max(1, rows.numel()))  # weights do not change what mean divides by
        else:
            options["normalizer"] = float(shared[2][chosen.long()].sum())
    loss, z_loss, correct, predicted = _LinearCrossEntropy.apply(hidden, weight, bias, *shared, token_weights, options)
    if not (return_z_loss or return_token_accuracy or return_predicted_tokens):
        return loss
    accuracy = None
    if return_token_accuracy:
        accuracy = ((predicted == targets) & counted).float() if reduction == "none" else (
            correct[0] / max(1, rows.numel()))
    return CrossEntropyOutput(loss, z_loss, accuracy, predicted.long() if return_predicted_tokens else None)


# ---- feed-forward -------------------------------------------------------------------------------------------------


class _SwigluMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate, up, down, tile, keep):
        ctx.tile = tile
        rows = _rows(x.reshape(-1, x.shape[-1]))
        gate, up, down = _rows(gate), _rows(up), _rows(down)
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        both = None
        if keep and any(ctx.needs_input_grad):
            both = torch.empty(rows.shape[0], 2 * gate.shape[0], dtype=rows.dtype, device=rows.device)
        if rows.shape[0]:
            _run("swiglu_mlp_forward", x.device, x=rows, gate=gate, up=up, down=down, tile=tile, out=out, gate_up=both)
        ctx.save_for_backward(rows, gate, up, down, both)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx, dout):
        rows, gate, up, down, both = ctx.saved_tensors
        new = torch.empty if rows.shape[0] else torch.zeros
        weights = [new(w.shape, dtype=torch.float32, device=w.device) if wanted else None
                   for w, wanted in zip((gate, up, down), ctx.needs_input_grad[1:4])]
        dx = torch.empty_like(rows, memory_format=torch.contiguous_format)
        if rows.shape[0]:
            _run("swiglu_mlp_backward", rows.device, x=rows, gate=gate, up=up, down=down, tile=ctx.tile, gate_up=both,
                 dout=_rows(dout.reshape(rows.shape)), dx=dx, dgate=weights[0], dup=weights[1], ddown=weights[2])
        return dx.view(dout.shape), *(_like(g, w) for g, w in zip(weights, (gate, up, down))), None, None


def swiglu_mlp(x, gate, up, down, tile=0, keep=False):
    """down · (silu(gate · x) ∘ (up · x)) for x [..., H], gate and up [I, H], down [H, I].

    tile: rows that are worked on at a time (0: all); what lies between exists for one tile only. Nothing but x is kept
    for the way back, which computes the rest once more; with keep gate · x and up · x are kept as well, which is faster.
    """
    return _SwigluMlp.apply(*_autocast(x, gate, up, down), tile, keep)


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, router, gate_up, down, settings):
        ctx.settings = settings
        rows = _rows(x.reshape(-1, x.shape[-1]))
        router, gate_up, down = router.contiguous(), gate_up.contiguous(), down.contiguous()
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        if rows.shape[0]:
            _run("experts_forward", x.device, x=rows, router=router, gate_up=gate_up, down=down, out=out, **settings)
        ctx.save_for_backward(rows, router, gate_up, down)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx, dout):
        rows, *weights = ctx.saved_tensors
        grads = [torch.zeros(w.shape, dtype=torch.float32, device=w.device) if wanted else None
                 for w, wanted in zip(weights, ctx.needs_input_grad[1:4])]
        dx = torch.empty_like(rows, memory_format=torch.contiguous_format)
        if rows.shape[0]:
            _run("experts_backward", rows.device, x=rows, router=weights[0], gate_up=weights[1], down=weights[2],
                 dout=_rows(dout.reshape(rows.shape)), dx=dx, drouter=grads[0], dgate_up=grads[1], ddown=grads[2],
                 **ctx.settings)
        return dx.view(dout.shape), *(_like(g, w) for g, w in zip(grads, weights)), None


def moe(x, router, gate_up, down, top_k, *, normalized=True, tile=0):
    """A mixture of experts: each row of x [..., H] goes to the top_k experts with the largest router logits.

    router [E, H], gate_up [E, 2·I, H] (gate first), down [E, H, I], as transformers stacks them. normalized: the chosen
    experts' weights sum to 1 (Mixtral, Qwen3); else they are what the softmax over all experts gives them. Router logits
    are in float32.
    """
    return _Experts.apply(*_autocast(x, router, gate_up, down), {"chosen": top_k, "normalized": normalized, "tile": tile})


# ---- attention ----------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, settings):
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        _run("attention_forward", q.device, q=q, k=k, v=v, sinks=sinks, out=out, lse=lse, **settings)
        ctx.settings = settings
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, sinks, out, lse = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
        wants_sinks = sinks is not None and ctx.needs_input_grad[3]
        dsinks = torch.zeros(sinks.shape, dtype=torch.float32, device=q.device) if wants_sinks else None
        _run("attention_backward", q.device, q=q, k=k, v=v, sinks=sinks, out=out, lse=lse, dout=_rows(dout), dq=dq,
             dk=dk, dv=dv, dsinks=dsinks, **ctx.settings)
        return dq, dk, dv, _like(dsinks, sinks), None


def attention(q, k, v, cu_seqlens=None, *, scale=None, window=0, mask="", score="", sinks=None, prefix_lengths=None,
              head_bias=None, deterministic=True):
    """Attention over documents that lie end to end: q [T, heads, D], k and v [T, kv_heads, D].

    cu_seqlens: where documents begin, and the end (a list, or a tensor); without, all tokens are one. Causal within a
    document, over at most `window` tokens where that is given; or by rules as text (docs/attention.md): mask="causal and
    q - k < 1024", score="20 * tanh(s / 20)". sinks [heads]: a learned logit beside each head's scores. prefix_lengths and
    head_bias: for masks and scores that speak of them; they have no gradients.
    """
    if head_bias is not None and head_bias.requires_grad:
        raise _inlay.UserError("head_bias has no gradient here: pass head_bias.detach() where it is not to be learned")
    q, k, v, sinks = _autocast(q, k, v, sinks)
    places = [0, q.shape[0]] if cu_seqlens is None else (
        cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else list(cu_seqlens))
    settings = {"cu_seqlens": places, "scale": scale or 0.0, "window": window, "mask": mask, "score": score,
                "deterministic": deterministic}
    if q.device.type != "cpu":
        settings["device_cu_seqlens"] = torch.tensor(places, dtype=torch.int32, device=q.device)
    if prefix_lengths is not None:
        settings["prefix_lengths"] = torch.as_tensor(prefix_lengths, dtype=torch.int32, device=q.device)
    if head_bias is not None:
        settings["head_bias"] = head_bias.float().contiguous()
    return _Attention.apply(_rows(q), _rows(k), _rows(v), sinks, settings)


# ---- OSFT ---------------------------------------------------------------------------------------------------------


class _OsftProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, weight, free):
        rows = _rows(x.reshape(-1, x.shape[-1]))
        ctx.save_for_backward(rows, factor, weight, free)
        return _product(rows, weight, True).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, dout):
        rows, factor, weight, free = ctx.saved_tensors
        dout_rows = _rows(dout.reshape(-1, dout.shape[-1]))
        dx = _product(dout_rows, weight, False).view(*dout.shape[:-1], weight.shape[1])
        dfactor = None
        if ctx.needs_input_grad[1]:
            inner = _product(rows, free, True)
            dfactor = torch.empty(factor.shape, dtype=torch.float32, device=factor.device)
            _run("matmul", rows.device, _tensor(dfactor), _tensor(dout_rows), True, _tensor(inner), False)
        return dx, _like(dfactor, factor), None, None


def _product(a, b, transpose):
    out = torch.empty(a.shape[0], b.shape[0 if transpose else 1], dtype=a.dtype, device=a.device)
    _run("matmul", a.device, _tensor(out), _tensor(a), False, _tensor(b), transpose)
    return out


class OsftLinear(torch.nn.Module):
    """A linear layer that learns only where its old inputs had the least energy: W = W₀ + B · V, of which B trains.

    Whatever the layer answered to inputs in the span of the other directions, it answers still. V's rows are
    orthonormal; OsftLinear.directions finds them from inputs that the layer has seen.
    """

    def __init__(self, linear, free):
        """free: V, [r, in_features]."""
        super().__init__()
        start = linear.weight.detach()
        self.register_buffer("start", start.clone())
        self.register_buffer("weight", start.clone())  # what is multiplied by: start + factor · free
        self.register_buffer("free", free.to(start))
        self.factor = torch.nn.Parameter(torch.zeros(start.shape[0], free.shape[0], dtype=torch.float32,
                                                     device=start.device))
        self.bias = linear.bias
        self._made_of = self.factor._version

    @staticmethod
    def directions(inputs, ratio=0.5):
        """The directions of least energy among the rows of inputs [..., in_features]: [ratio · in_features, ...]."""
        rows = inputs.detach().reshape(-1, inputs.shape[-1]).double()
        if not 0 < ratio <= 1:
            raise _inlay.UserError(f"ratio: expected a number above 0 and at most 1, got {ratio}")
        _, vectors = torch.linalg.eigh(rows.T @ rows)  # by ascending energy
        return vectors[:, :max(1, round(ratio * rows.shape[1]))].T.float().contiguous()

    def forward(self, x):
        if self.factor._version != self._made_of:  # an optimizer has changed it
            with torch.no_grad():
                self.weight.copy_(self.start + (self.factor @ self.free.float()).to(self.start.dtype))
            self._made_of = self.factor._version
        x, weight, free, bias = _autocast(x, self.weight, self.free, self.bias)
        y = _OsftProduct.apply(x, self.factor, weight, free)
        return y if bias is None else y + bias

    def merged(self):
        """A plain linear layer with what was learned in it."""
        linear = torch.nn.Linear(self.weight.shape[1], self.weight.shape[0], self.bias is not None,
                                 device=self.weight.device, dtype=self.weight.dtype)
        with torch.no_grad():
            linear.weight.copy_(self.start + (self.factor @ self.free.float()).to(self.start.dtype))
            if self.bias is not None:
                linear.bias.copy_(self.bias)
        return linear


# ---- models of transformers ---------------------------------------------------------------------------------------


def patch_llama(model, *, loss=True, mlp=True, tile=0, keep=None):
    """Gives a transformers model of the Llama family Inlay's loss and MLP: Llama, Mistral, Qwen2, Qwen3, SmolLM3, OLMo 2 and
    3, Granite, and with mlp=False Gemma 1 to 3 and Phi-3. Others are refused, for their loss may be another one.

    With labels the model then returns the loss and no logits. PEFT's adapters may come before or after; what they change is
    computed by the model's own code: an MLP with adapters, or all of the loss where the head has one. Returns the model.

    keep: whether the MLPs keep gate and up for the way back, or compute them once more in less memory. By default they do
    where they are not worked off in tiles of rows (tile).
    """
    from . import _llama

    return _llama.patch(model, loss, mlp, tile, tile == 0 if keep is None else keep)
