"""The properties, one file each: what must hold for every operator."""

import importlib

from torchgraft.checking.property import Property

# A report lists properties in this order: those that explain the others come first.
_NAMES = (
    "smoke",
    "value",
    "accuracy",
    "sizes",
    "empty",
    "dtypes",
    "layouts",
    "large",
    "non_finite",
    "inputs_and_outputs",
    "mutation",
    "read_only",
    "state",
    "surroundings",
    "memory_bounds",
    "memory",
    "bad_input",
    "determinism",
    "randomness",
    "thread_safety",
    "gradient",
    "second_gradient",
    "gradient_subsets",
    "gradient_layouts",
    "strides",
    "incoming_gradients",
    "functional_gradients",
    "forward_mode",
    "vmap",
    "opcheck",
    "fake",
    "compile",
    "export",
    "aot_inductor",
    "sharding",
    "autocast",
    "flops",
    "fallbacks",
    "pickle",
    "streams",
    "cuda_graph",
    "second_device",
    "stress",
)

PROPERTIES: dict[str, Property] = {name: importlib.import_module(f"{__name__}.{name}").PROPERTY for name in _NAMES}
