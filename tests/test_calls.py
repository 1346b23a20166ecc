"""Operators whose calls depend on each other or change what is around them: the first line of a report says how."""

import subprocess
import sys

import pytest
import torch

from planted import calls, kernels
from planted.finding import find_by_property
from torchgraft.checking.helpers.settings import generators_kept, settings_kept, settings_switched
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.one_job import run_here
from torchgraft.checking.report.check_report import describe
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import subject_of
from torchgraft.checking.tensors.compare import Mismatch

NEW = ("smoke", "state", "surroundings", "layouts", "randomness", "incoming_gradients", "mutation")
SAYS = {
    "remembers_addresses": "returns what it computed for the old values of ",
    "remembers_versions": "returns what it computed for the old values of ",
    "remembers_the_last": "a gradient is another if a second call comes between forward and backward",
    "sets_threads": "changes the number of threads from ",
    "sets_a_switch": "changes torch.backends.cudnn.benchmark from False to True in backward and leaves it so",
    "sets_the_default_dtype": "changes the default dtype from torch.float32 to torch.float64",
    "flushes_subnormals": "changes whether subnormal numbers count as zero from False to True",
    "sets_a_precision": "changes torch.backends.cuda.matmul.fp32_precision from ",
    "seeds_for_all": "changes the state of PyTorch's random generator, which other code draws from",
    "takes_the_default_dtype": "gives another result under torch.set_default_dtype(torch.float",
    "keeps_its_input": "keeps input alive after the call",
    "writes_and_undoes_it": "writes to an argument, which lies in memory that can only be read: the process died",
    "knows_two_strides_alone": "the gradient of input for an incoming gradient expanded along dimension 0 is wrong",
    "multiplies_by_bytes": "takes a boolean of mask for something else than true if its byte is 2 and not 1",
    "takes_32_bits_of_a_seed": "seed + 2**32 gives the same bits as seed: only its low 32 bits are used",
    "adds_seed_and_position": "the next seed gives the same random numbers (result 1), shifted by 1: mix the seed",
    "draws_a_result_once": "another seed gives the same bits: it is ignored (result 2)",
    "draws_both_alike": "results 1 and 2 depend on each other otherwise than those of the reference",
    "takes_the_logarithm_of_zero": "a random number is not finite, one among ",
    "counts_in_each_block": "the same random numbers come again 256 elements later (result 1)",
    "adds_noise_to_one_tile": "from about element 3,600 of 9,001 on the mean square is not the reference's (result 1)",
    "clears_behind_rows": "writes to memory around an argument, given rows with a gap at their end",
}


@pytest.mark.parametrize("bug", calls.BUGS, ids=lambda bug: bug.name)
def test_the_first_line_says_what_is_wrong(bug):
    kernels.load()
    failure = find_by_property(bug, "cpu").failure
    assert failure is not None
    assert failure.message.startswith(SAYS[bug.name])
    assert "repeated, the check passes" not in failure.at_fault


@pytest.mark.parametrize("operator", calls.CONTROLS, ids=lambda operator: operator.name)
def test_a_right_operator_passes_the_same_questions(operator):
    kernels.load()
    jobs = make_jobs([subject_of(operator)], devices=["cpu"], properties=[*NEW, "read_only"], quick=True)
    failed = [describe(result) for result in map(run_job, jobs) if result.status == "fail"]
    assert not failed, "\n".join(failed)


def test_smoke_tells_a_setting_that_is_changed_by_the_first_call_alone():
    """Later calls find it changed already."""
    changed = []
    operator = next(bug.operator for bug in calls.BUGS if bug.name == "sets_threads")
    job = next(iter(make_jobs([subject_of(operator)], devices=["cpu"], properties=["smoke"])))
    before = torch.get_num_threads()
    if before == 1:
        torch.set_num_threads(2)
    try:
        changed = [run_here(job).failure for _ in range(2)]
        assert torch.get_num_threads() == max(before, 2)
    finally:
        torch.set_num_threads(before)
    assert [failure.message for failure in changed] == [
        f"changes the number of threads from {max(before, 2)} to 1 and leaves it so"
    ] * 2


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "the number of threads"),
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype"),
        (lambda: torch.set_grad_enabled(False), "whether gradients are recorded"),
        (lambda: torch.set_flush_denormal(True), "whether subnormal numbers count as zero"),
        (lambda: torch.use_deterministic_algorithms(True), "torch.use_deterministic_algorithms"),
        (lambda: setattr(torch.backends.cudnn, "deterministic", True), "torch.backends.cudnn.deterministic"),
        (lambda: torch.autograd.set_detect_anomaly(True), "anomaly detection"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast on the CPU"),
    ],
)
def test_a_setting_that_changes_is_named_and_put_back(change, name):
    with pytest.raises(Mismatch, match=f"^changes {name} from .* and leaves it so$"), settings_kept():
        change()
    with settings_kept():
        pass


def test_settings_are_switched_for_a_scope_alone():
    with settings_kept():
        before = torch.backends.cudnn.benchmark, torch.get_num_threads()
        with settings_switched():
            assert torch.backends.cudnn.benchmark != before[0]
            assert torch.get_num_threads() != before[1]


# The first operator of the process that runs in parallel does so where subnormal numbers count as zero.
IN_A_NEW_PROCESS = """
import torch
from torchgraft.checking.helpers.settings import settings_switched

small, threads = torch.tensor(1e-30).expand(1_000_000), torch.get_num_threads()
with settings_switched():
    torch.ones(1_000_000)
for count in (threads, threads % 3 + 1):
    torch.set_num_threads(count)
    assert (small * 1e-10 != 0).all()
"""


def test_no_thread_goes_on_to_flush_subnormal_numbers():
    subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], check=True)


def test_a_seed_that_was_set_before_shows():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with pytest.raises(Mismatch, match="changes the state of PyTorch's random generator"), generators_kept():
        torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_job_leaves_settings_as_they_were_whatever_it_calls():
    before = torch.get_num_threads()
    (bug,) = (each for each in calls.BUGS if each.name == "sets_threads")
    assert find_by_property(bug, "cpu").status == "fail"
    assert torch.get_num_threads() == before
