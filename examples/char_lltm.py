"""A character language model on the documentation that Python itself ships: training, a loss curve, and a sample.

python examples/char_lltm.py [--layer lstm] [--steps 300] [--device cuda]
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.nn import LLTM

LAYERS = {"lltm": LLTM, "lstm": torch.nn.LSTM}
# How many characters the loss curve is high and wide.
HEIGHT, WIDTH = 8, 60


class CharacterModel(torch.nn.Module):
    """Says of each character of a text which may follow."""

    def __init__(self, layer: str, characters: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(characters, 64)
        self.recurrent = LAYERS[layer](64, hidden_size)
        self.head = torch.nn.Linear(hidden_size, characters)

    def forward(
        self, text: Tensor, states: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Text (T, B) to logits (T, B, characters) and the last states."""
        output, states = self.recurrent(self.embedding(text), states)
        return self.head(output), states


def train(model: CharacterModel, text: Tensor, steps: int, length: int, batch: int) -> list[float]:
    """Trains on random pieces of a text; returns the loss of each step, in nats a character."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - length - 1, (batch,))
        pieces = torch.stack([text[start : start + length + 1] for start in starts.tolist()], dim=1)
        logits, _ = model(pieces[:-1])
        loss = F.cross_entropy(logits.flatten(0, 1), pieces[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def sample(model: CharacterModel, prompt: Tensor, count: int, temperature: float = 0.6) -> list[int]:
    """Continues a prompt (T) by as many characters."""
    logits, states = model(prompt[:, None])
    found = []
    for _ in range(count):
        following = torch.multinomial(F.softmax(logits[-1] / temperature, -1), 1).T
        found.append(following.item())
        logits, states = model(following, states)
    return found


def draw(losses: list[float]) -> str:
    """A loss curve in characters."""
    width = min(WIDTH, len(losses))
    pieces = [losses[len(losses) * i // width : len(losses) * (i + 1) // width] for i in range(width)]
    means = [sum(piece) / len(piece) for piece in pieces]
    low, high = min(means), max(means)
    levels = [round((mean - low) / (high - low or 1) * (HEIGHT - 1)) for mean in means]
    rows = ["".join("*" if level == row else " " for level in levels) for row in reversed(range(HEIGHT))]
    labels = [f"{high:5.2f}", *[" " * 5] * (HEIGHT - 2), f"{low:5.2f}"]
    return "\n".join(f"{label} |{row}".rstrip() for label, row in zip(labels, rows, strict=True))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=LAYERS, default="lltm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--length", type=int, default=100, help="characters of a piece of text")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    written = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(written))
    places = {character: place for place, character in enumerate(characters)}
    text = torch.tensor([places[character] for character in written], device=options.device)
    model = CharacterModel(options.layer, len(characters), options.hidden_size).to(options.device)

    begin = time.perf_counter()
    losses = train(model, text, options.steps, options.length, options.batch)
    taken = time.perf_counter() - begin
    print(f"{options.layer} on {options.device}: {options.steps} steps, {taken / options.steps * 1e3:.1f} ms each")
    print(draw(losses))
    prompt = "The "
    continued = sample(model, text.new_tensor([places[character] for character in prompt]), 300)
    print(prompt + "".join(characters[place] for place in continued))


if __name__ == "__main__":
    main()
