"""scikit-build-core, asking for PyTorch in the build environment only where its headers are not found without."""

import importlib.util
from pathlib import Path
from typing import Any

from scikit_build_core.build import *
from scikit_build_core.build import get_requires_for_build_editable as _editable_requires
from scikit_build_core.build import get_requires_for_build_wheel as _wheel_requires

Settings = dict[str, Any] | None


def _torch_requirement() -> list[str]:
    path = Path(__file__).parent.parent / "src/torchgraft/cmake/torch_headers.py"
    spec = importlib.util.spec_from_file_location("torch_headers", path)
    assert spec is not None
    assert spec.loader is not None
    torch_headers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(torch_headers)
    return [] if torch_headers.torch_include() else ["torch>=2.11"]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*_wheel_requires(config_settings), *_torch_requirement()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*_editable_requires(config_settings), *_torch_requirement()]
