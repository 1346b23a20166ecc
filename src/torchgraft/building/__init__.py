"""Kernels become libraries here: compiled by CMake, kept in a cache, and loaded; from files, or from text."""

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
