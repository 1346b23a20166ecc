"""Measuring operators: what they cost, on what machine, beside what they should cost.

Knows an Operator and its samples, and no operator by name.
"""

from torchgraft.benchmarking.overhead import CalledOperator, Overhead, measure_overhead
from torchgraft.benchmarking.table import Table
from torchgraft.machine.environment import Environment, describe_environment

__all__ = ["CalledOperator", "Environment", "Overhead", "Table", "describe_environment", "measure_overhead"]
