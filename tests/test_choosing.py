"""Choices that are measured: what is timed and when, what is kept, saved and loaded, and when nothing is timed.

tests/test_emulation.py asks the same of the timer for GPUs, and of captured calls.
"""

import json
import os
import subprocess
import sys
import threading

import pytest
import torch

import torchgraft
from planted import kernels
from planted.elementwise import added, measured
from torchgraft import native
from torchgraft.kernels import measured_choice
from torchgraft.kernels.precision import cudnn_switches, equal_precision

pytestmark = pytest.mark.usefixtures("_forgotten")


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    kernels.load()


@pytest.fixture
def _forgotten():
    torchgraft.forget_choices()
    with measured_choice.measuring(False):
        yield
    torchgraft.forget_choices()
    torch.backends.cudnn.benchmark = False


@pytest.fixture
def switch(_forgotten):
    torch.backends.cudnn.benchmark = True
    with measured_choice.measuring(True):
        yield


def chosen():
    return [each.kernel for each in torchgraft.choices()]


def served(call):
    return native.chosen_kernels("planted", "cpu", call)


@pytest.mark.parametrize(("asked", "benchmark"), [(False, False), (False, True), (True, False)])
def test_the_policy_chooses_unless_both_are_on(asked, benchmark):
    torch.backends.cudnn.benchmark = benchmark
    leaves = torch.ones(1, 4, 5, 5, requires_grad=True), torch.ones(4, 1, 3, 3, requires_grad=True)
    with measured_choice.measuring(asked):
        assert served(lambda: measured(torch.ones(4), 2.0)) == ("slow",)
        torchgraft.depthwise_conv2d(*leaves).sum().backward()
    assert chosen() == []


ASKED_BY_VARIABLE = """
import torch, torchgraft
torch.backends.cudnn.benchmark = True
leaves = torch.ones(1, 4, 5, 5, requires_grad=True), torch.ones(4, 1, 3, 3, requires_grad=True)
torchgraft.depthwise_conv2d(*leaves).sum().backward()
print(len(torchgraft.choices()))
"""


@pytest.mark.parametrize(("variable", "count"), [("1", "3"), ("0", "0")])
def test_the_variable_asks_for_it(variable, count):
    variables = {**os.environ, "TORCHGRAFT_MEASURE": variable}
    done = subprocess.run([sys.executable, "-c", ASKED_BY_VARIABLE], env=variables, capture_output=True, text=True)
    assert done.stdout.strip() == count, done.stderr


def test_a_function_asks_for_it_and_takes_it_back():
    torch.backends.cudnn.benchmark = True
    torchgraft.measure_kernels()
    measured(torch.ones(4), 2.0)
    assert len(torchgraft.choices()) == 1
    torchgraft.measure_kernels(False)
    measured(torch.ones(5), 2.0)
    assert len(torchgraft.choices()) == 1


@pytest.mark.usefixtures("switch")
class TestMeasuring:
    """Where both are on the first call of a problem is timed, and each takes the fastest kernel that supports it."""

    @pytest.mark.parametrize(
        ("size", "kernel", "timed"),
        [
            (4, "quick", {"", "quick", "slow", "pytorch"}),
            # Not supported by the quick one, and then not by PyTorch's either.
            (5, "pytorch", {"", "slow", "pytorch"}),
            (7, "", {"", "slow"}),
        ],
    )
    def test_the_fastest_is_chosen_of_those_that_support_a_problem(self, size, kernel, timed):
        assert measured(torch.ones(size), 2.0).tolist() == [2.0] * size
        [choice] = torchgraft.choices()
        assert choice.operator == "planted::measured"
        assert choice.device == "cpu"
        # By its name the policy's kernel may seem faster than itself.
        assert choice.kernel == kernel or (size == 7 and choice.kernel == "slow")
        assert set(choice.microseconds) == timed
        assert min(choice.microseconds, key=choice.microseconds.get) in (kernel, "slow")
        # From then on without being timed.
        called = {"quick": ("quick",), "pytorch": (), "": ("slow",)}[kernel]
        assert served(lambda: measured(torch.ones(size), 2.0)) == called
        assert len(torchgraft.choices()) == 1

    def test_a_problem_is_whatever_the_arguments_say_but_their_values(self):
        measured(torch.ones(4), 2.0)
        measured(torch.full((4,), 9.0), 2.0)
        assert len(chosen()) == 1
        for other, factor in (
            (torch.ones(6), 2.0),
            (torch.ones(4, dtype=torch.float64), 2.0),
            (torch.ones(2, 2), 2.0),
            (torch.ones(8)[::2], 2.0),
            (torch.ones(4), 3.0),
        ):
            before = len(chosen())
            assert measured(other, factor).tolist() == (other * factor).tolist()
            assert len(chosen()) == before + 1

    def test_gradients_are_chosen_too(self):
        input = torch.randn(2, 8, 12, 12, requires_grad=True)
        weight = torch.randn(8, 1, 3, 3, requires_grad=True)
        found = torch.autograd.grad(torchgraft.depthwise_conv2d(input, weight, None, 1, 1).sum(), (input, weight))
        expected = torch.autograd.grad(
            torch.nn.functional.conv2d(input, weight, None, 1, 1, 1, 8).sum(), (input, weight)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert {each.operator for each in torchgraft.choices()} == {
            "torchgraft::depthwise_conv2d",
            "torchgraft::depthwise_conv2d_input_grad",
            "torchgraft::depthwise_conv2d_weight_grad",
        }
        # PyTorch's own are among them.
        assert all("pytorch" in each.microseconds for each in torchgraft.choices())

    def test_pytorch_is_none_of_them_where_it_has_no_such_operator(self):
        images, odd, even = torch.randn(1, 4, 9, 9), torch.randn(4, 1, 3, 3), torch.randn(4, 1, 2, 2)
        torchgraft.depthwise_conv2d(images, odd, None, 1, "same")
        [before] = torchgraft.choices()
        # Its padding differs from side to side.
        torchgraft.depthwise_conv2d(images, even, None, 1, "same")
        [after] = [each for each in torchgraft.choices() if each.problem != before.problem]
        assert "pytorch" in before.microseconds
        assert set(after.microseconds) == {""}

    def test_no_scope_of_tools_times_anything(self):
        with cudnn_switches(benchmark=True):
            measured(torch.ones(4), 2.0)
        with equal_precision():
            measured(torch.ones(4), 2.0)
        with native.ForcedKernel("planted", "cpu", "slow"):
            assert served(lambda: measured(torch.ones(4), 2.0)) == ("slow",)
        assert chosen() == []

    def test_compiled_and_exported_programs_keep_the_policy(self):
        class Layer(torch.nn.Module):
            def forward(self, input):
                return measured(input, 2.0)

        compiled = torch.compile(Layer(), backend="aot_eager", fullgraph=True)
        exported = torch.export.export(Layer(), (torch.ones(4),)).module()
        for program in (compiled, exported):
            program(torch.ones(4))
            assert served(lambda program=program: program(torch.ones(4))) == ("slow",)
        assert chosen() == []

    def test_threads_that_meet_a_problem_at_once_agree(self):
        found = []
        threads = [threading.Thread(target=lambda: found.append(measured(torch.ones(6), 2.0))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [each.tolist() for each in found] == 3 * [[2.0] * 6]
        assert chosen() == ["quick"]

    def test_choices_that_are_saved_are_loaded_and_not_timed_again(self, tmp_path):
        measured(torch.ones(4), 2.0)
        measured(torch.ones(5), 2.0)
        before = {(each.problem, each.kernel) for each in torchgraft.choices()}
        torchgraft.save_choices(tmp_path / "choices.json")
        torchgraft.forget_choices()
        assert chosen() == []
        torchgraft.load_choices(tmp_path / "choices.json")
        assert {(each.problem, each.kernel) for each in torchgraft.choices()} == before
        assert served(lambda: measured(torch.ones(4), 2.0)) == ("quick",)
        assert all(not each.microseconds for each in torchgraft.choices())

    @pytest.mark.parametrize(
        ("size", "kernel", "taken"),
        [
            # No kernel of the library; one that does not support five elements; PyTorch's, which cannot do seven.
            (4, "removed", "quick"),
            (5, "quick", "pytorch"),
            (7, "pytorch", ""),
        ],
    )
    def test_a_choice_that_cannot_be_followed_is_dropped_and_the_problem_timed(self, tmp_path, size, kernel, taken):
        measured(torch.ones(size), 2.0)
        path = tmp_path / "choices.json"
        torchgraft.save_choices(path)
        [saved] = json.loads(path.read_text())["choices"]
        path.write_text(json.dumps({"choices": [{**saved, "kernel": kernel}]}))
        torchgraft.forget_choices()
        torchgraft.load_choices(path)
        assert chosen() == [kernel]
        assert measured(torch.ones(size), 2.0).tolist() == [2.0] * size
        [choice] = torchgraft.choices()
        assert choice.kernel == taken or (size == 7 and choice.kernel == "slow")
        assert choice.microseconds

    @pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"choices": [{"kernel": ""}]}', '{"choices": 1}'])
    def test_what_is_no_file_of_choices_is_refused(self, tmp_path, text):
        path = tmp_path / "choices.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"load_choices: .*choices.json was not written by save_choices"):
            torchgraft.load_choices(path)

    def test_an_operator_that_writes_to_its_arguments_is_not_timed(self):
        total = torch.zeros(4)
        added(total, torch.ones(4))
        added(total, torch.ones(4, requires_grad=True)).sum().backward()
        assert total.tolist() == [2.0] * 4
        assert chosen() == []

    def test_an_operator_that_chooses_between_none_is_not_timed(self):
        torchgraft.mul_constant(torch.ones(4), 2.0)
        assert chosen() == []


def test_scopes_nest():
    torch.backends.cudnn.benchmark = True
    with measured_choice.measuring(True):
        with measured_choice.measuring(False), measured_choice.measuring(False):
            measured(torch.ones(4), 2.0)
            assert chosen() == []
        measured(torch.ones(4), 2.0)
    measured(torch.ones(6), 2.0)
    assert chosen() == ["quick"]
