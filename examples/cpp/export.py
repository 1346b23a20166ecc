"""Exports a model for the C++ program of this folder: `python export.py convnext`, `characters` or `rms_norm`.

It writes NAME.pt2, and requests of several batch sizes with what Python answers: NAME-1.input.pt, NAME-1.expected.pt.
`rms_norm` is a layer with the operator of the package in examples/rms_norm, which must be installed.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import torchgraft
from torchgraft.demo.data import CHARACTERS
from torchgraft.demo.parts.characters import CharacterModel
from torchgraft.demo.parts.convnext import ConvNeXtBlock

LARGEST_BATCH = 64
BATCHES = (1, 2, 7)


def convnext() -> tuple[nn.Module, Tensor]:
    """A block of ConvNeXt, whose depthwise convolution is grafted; and a batch of images."""
    return torchgraft.graft(ConvNeXtBlock(16)), torch.randn(2, 16, 14, 14)


def characters() -> tuple[nn.Module, Tensor]:
    """A character model with an LLTM; and a batch of texts."""
    return CharacterModel(torchgraft.nn.LLTM), torch.randint(CHARACTERS, (2, 20))


def rms_norm() -> tuple[nn.Module, Tensor]:
    """A layer with an operator of another package; and a batch of features."""
    import rms_norm

    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(256))

        def forward(self, input: Tensor) -> Tensor:
            return rms_norm.rms_norm(input, self.weight)

    return Normalized(), torch.randn(2, 256)


MODELS = {each.__name__: each for each in (convnext, characters, rms_norm)}


@torch.no_grad()
def export(name: str, folder: Path, device: str) -> None:
    """Writes the files of a model into a folder."""
    torch.manual_seed(0)
    model, example = MODELS[name]()
    model, example = model.to(device).eval(), example.to(device)
    batch = torch.export.Dim("batch", min=1, max=LARGEST_BATCH)
    program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    path = torchgraft.package(program, folder / f"{name}.pt2")
    answer = torch._inductor.aoti_load_package(str(path))
    for size in BATCHES:
        input = example[torch.randint(2, (size,), device=device)].flip(-1).contiguous()
        torch.save((input,), folder / f"{name}-{size}.input.pt")
        torch.save((answer(input),), folder / f"{name}-{size}.expected.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    export(options.model, Path.cwd(), options.device)
