"""A character model of PyTorch's embedding and head around a recurrent layer: nn.LSTM, or nn.LLTM in its place."""

from functools import partial

from torch import Tensor, nn

from torchgraft.demo.data import CHARACTERS, documentation
from torchgraft.demo.experiment import Experiment, Network
from torchgraft.nn import LLTM


class CharacterModel(nn.Module):
    """Says of each character of a text which comes next.

    Args:
        layer: makes the recurrent layer, as `torch.nn.LSTM` does.
        features: of the embedding.
        hidden_size: units of the recurrent layer.
    """

    def __init__(self, layer: type[nn.Module], features: int = 32, hidden_size: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, features)
        self.recurrent = layer(features, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        """(N, T) to logits (N, T, characters)."""
        output, _ = self.recurrent(self.embedding(text))
        logits: Tensor = self.head(output)
        return logits


CHARACTER_MODEL = Experiment(
    name="characters",
    title="A character model on the documentation of Python",
    rival=Network("nn.LSTM", partial(CharacterModel, nn.LSTM)),
    ours=Network("nn.LLTM", partial(CharacterModel, LLTM)),
    load=documentation,
    epochs=5,
    batch_size=32,
    learning_rate=8e-3,
    least_accuracy=0.33,
    tolerance=None,
    timing_seconds=4.0,
    describe=lambda rival, ours: (
        "An LLTM has three gates and an LSTM has four: they are different functions, trained side by side."
    ),
)
