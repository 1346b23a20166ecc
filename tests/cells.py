"""Cells that people train, each written as its paper does; and cells that a machine composes."""

import random

import torch
import torch.nn.functional as F

from torchgraft.recurrence import Cell


def added(gates, message_gates):
    return tuple(gate + more for gate, more in zip(gates, message_gates, strict=True))


def lltm(gates, message_gates, h, c):
    i, o, z = added(gates, message_gates)
    c = c + F.elu(z) * torch.sigmoid(i)
    return torch.tanh(c) * torch.sigmoid(o), c


def lstm(gates, message_gates, h, c):
    i, f, z, o = added(gates, message_gates)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(gates, message_gates, h):
    r, z = torch.sigmoid(gates[0] + message_gates[0]), torch.sigmoid(gates[1] + message_gates[1])
    n = torch.tanh(gates[2] + r * message_gates[2])
    return (1 - z) * n + z * h


def rnn_tanh(gates, message_gates, h):
    return torch.tanh(gates[0] + message_gates[0])


def rnn_relu(gates, message_gates, h):
    return (torch.relu(gates[0] + message_gates[0]),)


def leaky(gates, message_gates, h):
    return (0.9 * h + 0.1 * torch.tanh(gates[0] + message_gates[0]),)


def firing(gates, message_gates, h):
    return 0.9 * h + 0.1 * (gates[0] + message_gates[0])


def peephole(gates, message_gates, h, c, p_i, p_f, p_o):
    i, f, z, o = added(gates, message_gates)
    i, f = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c)
    c = f * c + i * torch.tanh(z)
    return torch.sigmoid(o + p_o * c) * torch.tanh(c), c


def slstm(gates, message_gates, h, c, n, m):
    i, f, z, o = added(gates, message_gates)
    log_f = m + F.logsigmoid(f)
    m = torch.maximum(log_f, i)
    i, f = torch.exp(i - m), torch.exp(log_f - m)
    c, n = f * c + i * torch.tanh(z), f * n + i
    return torch.sigmoid(o) * c / n, c, n, m


# The arguments of each.
CELLS = {
    "lltm": (lltm, {"gates": 3, "states": 2}),
    "lstm": (lstm, {"gates": 4, "states": 2}),
    "gru": (gru, {"gates": 3, "states": 1}),
    "rnn_tanh": (rnn_tanh, {"gates": 1, "states": 1}),
    "rnn_relu": (rnn_relu, {"gates": 1, "states": 1}),
    "leaky": (leaky, {"gates": 1, "states": 1}),
    "firing": (firing, {"gates": 1, "states": 1, "message": torch.tanh, "output": torch.relu}),
    "peephole": (peephole, {"gates": 4, "states": 2, "parameters": 3}),
    "slstm": (slstm, {"gates": 4, "states": 4}),
}


def make(name):
    function, counts = CELLS[name]
    return Cell(function, **counts)


# What a composed cell is made of; each function is bounded, or grows no faster than its argument. Not hardsigmoid:
# PyTorch multiplies its gradient by a sixth in float32, in float64 too (2.13).
ONE = (
    *(torch.tanh, torch.sigmoid, torch.relu, torch.abs, torch.neg, torch.sin, torch.cos, torch.atan, torch.erf),
    *(F.softplus, F.elu, F.silu, F.gelu, F.leaky_relu, F.hardtanh, F.logsigmoid, F.softsign, torch.sign),
    *(
        lambda x: x.clamp(-1, 0.5),
        lambda x: x.clamp(min=0),
        lambda x: torch.exp(-x.abs()),
        lambda x: torch.expm1(-x * x),
    ),
    *(
        lambda x: torch.log1p(x * x),
        lambda x: torch.sqrt(x * x + 0.5),
        lambda x: torch.rsqrt(x * x + 2),
        lambda x: 1 - x,
    ),
    *(
        lambda x: 1 / (2 + x.abs()),
        lambda x: torch.log(x.abs() + 1),
        lambda x: x.pow(2) / 4,
        lambda x: x.abs().pow(1.5) / 2,
    ),
    *(lambda x: torch.where(x > 0, x, 0.25 * x), lambda x: (x >= 0.5) * x, lambda x: (x == 0).to(x.dtype)),
    *(lambda x: torch.ones_like(x) * 0.5 - x, lambda x: x.mul(2).add_(1), lambda x: torch.rsub(x, 2, alpha=0.5)),
)
TWO = (
    *(torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.add, torch.mul),
    *(lambda x, y: x / (1 + y * y), lambda x, y: torch.where(x > y, x, 0.5 * y), lambda x, y: torch.lerp(x, y, 0.25)),
    *(lambda x, y: torch.where((x > 0) & ~(y < 0) | (x == y), x, y), lambda x, y: torch.logaddexp(x, y)),
    *(lambda x, y: torch.addcmul(x, x, y, value=0.5), lambda x, y: torch.where((x >= 0) ^ (y >= 0), x - y, x)),
)


def composed(seed):
    """A cell whose states are random expressions of all that it gets."""
    draw = random.Random(seed)
    counts = {"gates": draw.randint(1, 3), "states": draw.randint(1, 3), "parameters": draw.randint(0, 2)}
    leaves = 2 * counts["gates"] + counts["states"] + counts["parameters"]
    is_apart = draw.random() < 0.4

    def tree(depth):
        if depth == 0 or draw.random() < 0.1:
            return draw.randrange(leaves)
        if draw.random() < 0.5:
            return draw.choice(ONE), tree(depth - 1)
        return draw.choice(TWO), tree(depth - 1), tree(depth - 1)

    trees = [tree(4) for _ in range(counts["states"])]

    def value(node, given):
        return given[node] if isinstance(node, int) else node[0](*(value(each, given) for each in node[1:]))

    def step(gates, message_gates, *others):
        given = [*gates, *message_gates, *others] if is_apart else [*added(gates, message_gates) * 2, *others]
        return tuple(value(each, given) for each in trees)

    step.__name__ = f"composed_{seed}"
    message = torch.tanh if counts["states"] == 1 else counts["states"] - 1
    return Cell(step, message=message, output=lambda *states: states[-1] * 0.5 + states[0], **counts)
