"""inlay.torch against PyTorch's own arithmetic in float64, and by gradcheck. Needs torch: python3 test_torch.py.

The ops compute in float32, so gradcheck's differences are of float32 numbers: with a step of 1e-2 what rounding adds to
a difference is about 1e-5, and what the step's curvature adds is below 1e-3 for these sizes. The comparisons with
float64 are the sharp ones.
"""

import itertools
import math
import os
import unittest

# Many virtual machines show AMX and not the leaf that describes it: PyTorch's oneDNN dies there of its first product in bf16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F

import inlay
import inlay.torch as ops

devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() and inlay.build["cuda"] else [])


def numbers(*shape, device="cpu", seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + math.prod(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(device).requires_grad_()


def gradcheck(function, inputs):
    return torch.autograd.gradcheck(function, inputs, eps=1e-2, atol=2e-3, rtol=2e-2, nondet_tol=0.0)


class Case(unittest.TestCase):
    def assert_same(self, ours, theirs, inputs, tolerance=2e-5):
        """Values and gradients of ours(*inputs) are those of theirs in float64."""
        exact = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
        y, expected = ours(*inputs), theirs(*exact)
        upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(y.device)
        size = lambda x: max(1.0, float(x.abs().max()))
        self.assertLess(float((y.double() - expected).abs().max()), tolerance * size(expected))
        wanted = [i for i, x in enumerate(inputs) if x.requires_grad]
        mine = torch.autograd.grad(y, [inputs[i] for i in wanted], upstream.to(y.dtype))
        right = torch.autograd.grad(expected, [exact[i] for i in wanted], upstream.double())
        for i, a, b in zip(wanted, mine, right):
            self.assertEqual(a.dtype, inputs[i].dtype)
            self.assertLess(float((a.double() - b).abs().max()), tolerance * size(b), f"gradient of input {i}")


def reference_loss(hidden, weight, bias, target, class_weights, ignore_index, z, smoothing, reduction, softcap):
    logits = hidden @ weight.T + (0 if bias is None else bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits, target, class_weights, ignore_index=ignore_index, label_smoothing=smoothing,
                           reduction=reduction)
    lse = torch.where(target == ignore_index, 0.0, torch.logsumexp(logits, -1))
    z_losses = z * lse**2
    return loss + {"none": z_losses, "sum": z_losses.sum(), "mean": z_losses.sum() / (target != ignore_index).sum()}[
        reduction]


class Loss(Case):
    def test_every_option_of_ligers_call(self):
        for device in devices:
            hidden, weight, bias = (numbers(*s, device=device, scale=0.7) for s in ((13, 8), (11, 8), (11,)))
            target = torch.randint(0, 11, (13,), generator=torch.Generator().manual_seed(1)).to(device)
            target[[2, 7]] = -100
            class_weights = torch.rand(11, generator=torch.Generator().manual_seed(2)).to(device) + 0.5
            grid = itertools.product((None, class_weights), (0.0, 1e-2), (0.0, 0.1), ("mean", "sum", "none"), (None, 3.0),
                                     (False, True))
            for weights, z, smoothing, reduction, softcap, biased in grid:
                inputs = [hidden, weight] + ([bias] if biased else [])
                with self.subTest(device=device, z=z, smoothing=smoothing, reduction=reduction, softcap=softcap):
                    self.assert_same(
                        lambda h, w, b=None: ops.fused_linear_cross_entropy(
                            h, w, target, b, weights, lse_square_scale=z, label_smoothing=smoothing,
                            reduction=reduction, softcap=softcap),
                        lambda h, w, b=None: reference_loss(h, w, b, target, None if weights is None else weights.double(),
                                                            -100, z, smoothing, reduction, softcap), inputs)

    def test_gradcheck(self):
        target = torch.tensor([1, 0, 3, -100, 2])
        inputs = [numbers(5, 4), numbers(6, 4), numbers(6)]
        for reduction in ("mean", "sum", "none"):
            self.assertTrue(gradcheck(lambda h, w, b: ops.fused_linear_cross_entropy(
                h, w, target, b, reduction=reduction, label_smoothing=0.1, lse_square_scale=0.01), inputs))

    def test_what_it_can_return(self):
        hidden, weight = numbers(9, 8), numbers(7, 8)
        target = torch.tensor([0, 1, 2, 3, 4, 5, 6, 9, 0])
        logits = (hidden @ weight.T).detach()
        out = ops.fused_linear_cross_entropy(hidden, weight, target, ignore_index=9, lse_square_scale=0.5,
                                             return_z_loss=True, return_token_accuracy=True,
                                             return_predicted_tokens=True)
        counted = target != 9
        self.assertEqual(out.predicted_tokens[counted].tolist(), logits.argmax(1)[counted].tolist())
        self.assertEqual(int(out.predicted_tokens[7]), -1)
        right = (logits.argmax(1) == target)[counted].float()
        self.assertAlmostEqual(float(out.token_accuracy), float(right.mean()), places=6)
        z = 0.5 * (torch.logsumexp(logits, 1)[counted] ** 2).mean()
        self.assertAlmostEqual(float(out.z_loss), float(z), places=4)
        none = ops.fused_linear_cross_entropy(hidden, weight, target, ignore_index=9, reduction="none",
                                              return_token_accuracy=True)
        self.assertEqual(none.token_accuracy[counted].tolist(), right.tolist())

    def test_token_scaling(self):
        target = torch.tensor([0, 1, 2, -100, 4])

        def theirs(h, w):
            losses = F.cross_entropy(h @ w.T, target, reduction="none")
            return (losses * torch.exp(-losses.detach())).sum() / 4

        self.assert_same(lambda h, w: ops.fused_linear_cross_entropy(h, w, target, use_token_scaling=True), theirs,
                         [numbers(5, 8), numbers(7, 8)])

    def test_frozen_heads_empty_targets_and_chunks(self):
        hidden, weight = numbers(9, 8), numbers(7, 8).detach()
        target = torch.arange(9) % 7
        loss = ops.fused_linear_cross_entropy(hidden, weight, target)
        loss.backward()
        whole = hidden.grad.clone()
        hidden.grad = None
        ops.fused_linear_cross_entropy(hidden, weight, target, chunk_mem_const=0.01).backward()
        torch.testing.assert_close(hidden.grad, whole)
        hidden.grad = None
        nothing = ops.fused_linear_cross_entropy(hidden, weight, torch.full((9,), -100), reduction="sum")
        nothing.backward()
        self.assertEqual((float(nothing), float(hidden.grad.abs().max())), (0.0, 0.0))

    def test_bf16_is_no_worse_than_plain_pytorch(self):
        for device in devices:
            hidden, weight = (numbers(*s, device=device).detach().bfloat16().requires_grad_() for s in ((64, 32), (50, 32)))
            target = (torch.arange(64) % 50).to(device)
            exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
            right = torch.autograd.grad(F.cross_entropy(exact[0] @ exact[1].T, target), exact)
            ours = torch.autograd.grad(ops.fused_linear_cross_entropy(hidden, weight, target), (hidden, weight))
            plain = torch.autograd.grad(F.cross_entropy((hidden @ weight.T).float(), target), (hidden, weight))
            for a, b, c in zip(ours, plain, right):
                error = lambda x: float((x.double() - c).abs().max())
                self.assertLessEqual(error(a), 2 * error(b) + 1e-4)

    def test_mistakes(self):
        hidden, weight = numbers(3, 4), numbers(5, 4)
        for message, call in (
            ("target: expected", lambda: ops.fused_linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 5]))),
            ("target is", lambda: ops.fused_linear_cross_entropy(hidden, weight, torch.tensor([0]))),
            ("accum_dtype", lambda: ops.fused_linear_cross_entropy(hidden, weight, torch.zeros(3, dtype=int),
                                                                   accum_dtype=torch.float16)),
            ("fp64", lambda: ops.fused_linear_cross_entropy(hidden.double(), weight.double(), torch.zeros(3, dtype=int))),
            ("weight is", lambda: ops.fused_linear_cross_entropy(hidden, numbers(5, 3), torch.zeros(3, dtype=int))),
        ):
            with self.assertRaisesRegex(inlay.UserError, message):
                call()


class FeedForward(Case):
    def test_mlp(self):
        for device, tile, keep in itertools.product(devices, (0, 3), (False, True)):
            self.assert_same(lambda x, g, u, d: ops.swiglu_mlp(x, g, u, d, tile, keep),
                             lambda x, g, u, d: (F.silu(x @ g.T) * (x @ u.T)) @ d.T,
                             [numbers(2, 5, 8, device=device)] + [numbers(*s, device=device, scale=0.5) for s in
                                                                  ((12, 8), (12, 8), (8, 12))])
        given = [numbers(3, 4)] + [numbers(*s, scale=0.5) for s in ((5, 4), (5, 4), (4, 5))]
        for keep in (False, True):
            self.assertTrue(gradcheck(lambda *a: ops.swiglu_mlp(*a, 2, keep), given))

    def test_what_is_kept_stays_for_another_way_back(self):
        inputs = [numbers(3, 4), *(numbers(*s) for s in ((5, 4), (5, 4), (4, 5)))]
        total = ops.swiglu_mlp(*inputs, keep=True).sum()
        first, second = (torch.autograd.grad(total, inputs, retain_graph=True) for _ in range(2))
        for a, b in zip(first, second):
            self.assertTrue(torch.equal(a, b))

    def test_experts(self):
        for device, normalized in itertools.product(devices, (True, False)):

            def theirs(x, router, gate_up, down):
                probability = torch.softmax(x @ router.T, -1)
                weights, chosen = probability.topk(2, -1)
                if normalized:
                    weights = weights / weights.sum(-1, keepdim=True)
                out = torch.zeros_like(x)
                for e in range(router.shape[0]):
                    gate, up = (x @ gate_up[e].T).chunk(2, -1)
                    share = (weights * (chosen == e)).sum(-1, keepdim=True)
                    out = out + share * ((F.silu(gate) * up) @ down[e].T)
                return out

            shapes = (9, 8), (4, 8), (4, 12, 8), (4, 8, 6)
            self.assert_same(lambda *a: ops.moe(*a, 2, normalized=normalized, tile=5), theirs,
                             [numbers(*s, device=device, scale=0.7) for s in shapes])

    def test_experts_by_gradcheck(self):
        # The router's logits are far apart, so that no step of a difference changes who is chosen.
        router = torch.tensor([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0]]).requires_grad_()
        x = torch.tensor([[1.0, 0.3, -0.5, 0.2], [-0.6, 1.1, 0.4, -0.3], [0.2, -0.8, 0.9, 0.5]]).requires_grad_()
        weights = [numbers(3, 6, 4, scale=0.5), numbers(3, 4, 3, scale=0.5)]
        logits = (x @ router.T).detach().sort(1, descending=True).values
        self.assertGreater(float((logits[:, 1] - logits[:, 2]).min()), 0.5)
        for normalized in (True, False):
            self.assertTrue(gradcheck(lambda x, r, gu, d: ops.moe(x, r, gu, d, 2, normalized=normalized),
                                      [x, router, *weights]))

    def test_quantised_weights_are_refused(self):
        packed = torch.zeros(12, 4, dtype=torch.uint8)
        with self.assertRaisesRegex(TypeError, "uint8.*dequantised"):
            ops.swiglu_mlp(numbers(3, 8), packed, packed, packed)


class Attention(Case):
    @staticmethod
    def reference(q, k, v, sinks, places, seen, score=lambda s: s):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = score(torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]))
        place = torch.bucketize(torch.arange(q.shape[0]), torch.tensor(places[1:]), right=True)
        positions = torch.arange(q.shape[0]) - torch.tensor(places)[place]
        allowed = (place[:, None] == place[None]) & seen(positions[:, None], positions[None])
        scores = scores.masked_fill(~allowed.to(q.device), -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, q.shape[0], 1)], -1)
        weights = torch.softmax(scores, -1)[..., : q.shape[0]]
        return torch.einsum("hqk,khd->qhd", weights, v)

    def test_documents_windows_rules_and_sinks(self):
        places = [0, 5, 6, 13]
        causal = lambda q, k: k <= q
        near = lambda q, k: (k <= q) & (q - k < 3)
        cases = (({}, causal, None), ({"window": 3}, near, None), ({"mask": "causal and q - k < 3"}, near, None),
                 ({"score": "2 * tanh(s / 2)"}, causal, lambda s: 2 * torch.tanh(s / 2)))
        for device, (settings, seen, score), with_sinks in itertools.product(devices, cases, (False, True)):
            inputs = [numbers(*s, device=device) for s in ((13, 4, 8), (13, 2, 8), (13, 2, 8))]
            inputs += [numbers(4, device=device)] if with_sinks else []
            with self.subTest(device=device, settings=settings, sinks=with_sinks):
                self.assert_same(lambda q, k, v, s=None: ops.attention(q, k, v, places, sinks=s, **settings),
                                 lambda q, k, v, s=None: self.reference(q, k, v, s, places, seen, score or (lambda x: x)),
                                 inputs)

    def test_gradcheck(self):
        inputs = [numbers(4, 2, 4), numbers(4, 1, 4), numbers(4, 1, 4), numbers(2)]
        self.assertTrue(gradcheck(lambda q, k, v, s: ops.attention(q, k, v, [0, 1, 4], sinks=s), inputs))
        rules = ({"mask": "causal and q - k < 2"}, {"score": "2 * tanh(s / 2)"},
                 {"score": "s + bias * (k - q)", "head_bias": torch.tensor([0.5, 0.25])},
                 {"mask": "causal or prefix", "prefix_lengths": [1, 2]})
        for rule in rules:
            with self.subTest(rule=rule):
                self.assertTrue(gradcheck(lambda q, k, v, s: ops.attention(q, k, v, [0, 1, 4], sinks=s, **rule), inputs))

    def test_mistakes(self):
        q = numbers(4, 2, 8)
        with self.assertRaisesRegex(inlay.UserError, "cu_seqlens"):
            ops.attention(q, q, q, [0, 3])
        with self.assertRaisesRegex(inlay.UserError, "column"):
            ops.attention(q, q, q, mask="casual")
        with self.assertRaisesRegex(ValueError, "head_bias has no gradient"):
            ops.attention(q, q, q, score="head_bias", head_bias=numbers(2))


class Osft(Case):
    def test_learns_and_leaves_old_inputs_alone(self):
        torch.manual_seed(0)
        old = torch.randn(64, 3) @ torch.randn(3, 8)
        linear = torch.nn.Linear(8, 5)
        layer = ops.OsftLinear(linear, ops.OsftLinear.directions(old, 0.5))
        torch.testing.assert_close(layer(old), linear(old))
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        x = torch.randn(32, 8)
        y = linear(x).detach() + x @ layer.free.T @ torch.randn(4, 5)  # the free directions can learn all of it
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = F.mse_loss(layer(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        self.assertLess(losses[-1], 0.1 * losses[0])
        with torch.no_grad():  # the bias trains as a whole; what the matrix says of old inputs stays
            torch.testing.assert_close(layer(old) - layer.bias, old @ linear.weight.T, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(layer.merged()(x), layer(x))

    def test_gradients(self):
        linear = torch.nn.Linear(8, 5, bias=False)
        layer = ops.OsftLinear(linear, ops.OsftLinear.directions(torch.randn(20, 8), 0.5))
        start, free = linear.weight.detach().double(), layer.free.double()
        self.assert_same(lambda x, b: ops._OsftProduct.apply(x, b, layer.weight, layer.free),
                         lambda x, b: x @ (start + b @ free).T, [numbers(3, 4, 8), layer.factor])

    def test_gradcheck(self):
        layer = ops.OsftLinear(torch.nn.Linear(4, 3), ops.OsftLinear.directions(torch.randn(20, 4), 0.5))

        def call(x, factor):
            with torch.no_grad():
                layer.factor.copy_(factor)
                layer(x)  # makes the weight that is multiplied by
            return ops._OsftProduct.apply(x, factor, layer.weight.clone(), layer.free)

        self.assertTrue(gradcheck(call, [numbers(2, 4), numbers(*layer.factor.shape)]))


class Autocast(Case):
    """Parameters in float32 and bfloat16 inside, as trainers have it: what comes out is what casting by hand gives."""

    def check(self, call, inputs):
        ours = call(*inputs)
        with torch.autocast("cpu", torch.bfloat16):
            cast = call(*inputs)
        by_hand = [x.detach().bfloat16().requires_grad_() for x in inputs]
        half = call(*by_hand)
        self.assertEqual((ours.dtype, cast.dtype), (torch.float32, half.dtype))
        torch.testing.assert_close(cast, half, rtol=0, atol=0)
        upstream = torch.ones_like(half)
        for a, b in zip(torch.autograd.grad(cast, inputs, upstream), torch.autograd.grad(half, by_hand, upstream)):
            self.assertEqual(a.dtype, torch.float32)
            torch.testing.assert_close(a, b.float(), rtol=0, atol=0)

    def test_all_of_them(self):
        target = torch.tensor([1, 0, -100, 2])
        self.check(lambda h, w: ops.fused_linear_cross_entropy(h, w, target), [numbers(4, 8), numbers(6, 8)])
        self.check(lambda *a: ops.swiglu_mlp(*a), [numbers(3, 8), numbers(12, 8), numbers(12, 8), numbers(8, 12)])
        self.check(lambda *a: ops.moe(*a, 2), [numbers(5, 8), numbers(4, 8), numbers(4, 12, 8), numbers(4, 8, 6)])
        self.check(lambda q, k, v, s: ops.attention(q, k, v, sinks=s),
                   [numbers(4, 2, 8), numbers(4, 1, 8), numbers(4, 1, 8), numbers(2)])

    def test_types_that_differ_and_float16(self):
        x, weights = numbers(3, 8), [numbers(12, 8), numbers(12, 8), numbers(8, 12)]
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(ops.swiglu_mlp(x.bfloat16(), *weights).dtype, torch.bfloat16)
        with torch.autocast("cpu", torch.float16):
            self.assertEqual(ops.swiglu_mlp(x.half(), *weights).dtype, torch.float32)

    def test_osft_linear(self):
        x = numbers(3, 8)
        for bias in (True, False):
            linear = torch.nn.Linear(8, 5, bias)
            layer = ops.OsftLinear(linear, torch.eye(8)[:3])
            x.grad = None
            with torch.autocast("cpu", torch.bfloat16):
                y, theirs = layer(x), linear(x)
            self.assertEqual((y.dtype, layer(x).dtype), (theirs.dtype, torch.float32))
            torch.testing.assert_close(y, theirs, rtol=0.02, atol=0.02)
            y.sum().backward()
            torch.testing.assert_close(y.float(), layer(x), rtol=0.02, atol=0.05)
            self.assertEqual((layer.factor.grad.dtype, x.grad.dtype), (torch.float32, torch.float32))
            if bias:
                self.assertEqual(layer.bias.grad.dtype, torch.float32)
                torch.testing.assert_close(layer.bias.grad, torch.full((5,), 3.0))


if __name__ == "__main__":
    unittest.main()
