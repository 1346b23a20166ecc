"""Choices that are measured: what is timed and when, what is kept, saved and loaded, and when nothing is timed."""

import json
import threading

import pytest
import torch

import torchgraft
from planted import kernels
from planted.elementwise import measured
from torchgraft import choosing, native
from torchgraft.precision import cudnn_switches, equal_precision

pytestmark = pytest.mark.usefixtures("_forgotten")


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    kernels.load()


@pytest.fixture
def _forgotten():
    torchgraft.forget_choices()
    yield
    torchgraft.forget_choices()
    torch.backends.cudnn.benchmark = False


@pytest.fixture
def switch():
    torch.backends.cudnn.benchmark = True


def chosen():
    return [each.kernel for each in torchgraft.choices()]


def served(call):
    return native.chosen_kernels("planted", "cpu", call)


def test_without_the_switch_the_policy_chooses_and_nothing_is_timed():
    assert served(lambda: measured(torch.ones(4), 2.0)) == ("slow",)
    assert chosen() == []


@pytest.mark.usefixtures("switch")
class TestMeasuring:
    """With the switch on the first call of a problem is timed, and each takes the fastest kernel that supports it."""

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
        assert choice.kernel == kernel
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

    def test_a_kernel_that_there_is_no_longer_leaves_the_choice_to_the_policy(self, tmp_path):
        measured(torch.ones(4), 2.0)
        path = tmp_path / "choices.json"
        torchgraft.save_choices(path)
        path.write_text(path.read_text().replace('"kernel": "quick"', '"kernel": "removed"'))
        torchgraft.forget_choices()
        torchgraft.load_choices(path)
        assert served(lambda: measured(torch.ones(4), 2.0)) == ("slow",)

    def test_what_another_device_measured_is_refused(self, tmp_path):
        measured(torch.ones(4), 2.0)
        path = tmp_path / "choices.json"
        torchgraft.save_choices(path)
        found = json.loads(path.read_text())
        path.write_text(json.dumps({**found, "devices": {"cpu": "another"}}))
        with pytest.raises(ValueError, match="was written for 'another', this machine has 'cpu'"):
            torchgraft.load_choices(path)
        path.write_text("[]")
        with pytest.raises(ValueError, match="was not written by save_choices"):
            torchgraft.load_choices(path)


def test_an_operator_that_chooses_between_none_is_not_timed():
    torch.backends.cudnn.benchmark = True
    torchgraft.mul_constant(torch.ones(4), 2.0)
    assert chosen() == []


def test_a_pause_ends_with_its_scope():
    with choosing.not_measured(), choosing.not_measured():
        pass
    torch.backends.cudnn.benchmark = True
    measured(torch.ones(4), 2.0)
    assert chosen() == ["quick"]
