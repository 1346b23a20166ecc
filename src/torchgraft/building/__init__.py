"""Makes libraries of kernels, from files or from text: compiles them with CMake, caches them, and loads them."""

from torchgraft.building.compile import (
    BuildError,
    MissingToolError,
    build,
    build_once,
    can_build_cuda,
    find_tool,
    has_tool,
    load,
    require_compiler,
    version_of,
)

__all__ = [
    "BuildError",
    "MissingToolError",
    "build",
    "build_once",
    "can_build_cuda",
    "find_tool",
    "has_tool",
    "load",
    "require_compiler",
    "version_of",
]
