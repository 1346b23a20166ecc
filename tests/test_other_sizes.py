"""Calls in sizes and ranks that no sample has, and packed batches: what is asked, and what counts as an answer."""

import functools
import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from torchgraft import Operator
from torchgraft.checking import check
from torchgraft.checking.helpers import regimes
from torchgraft.checking.properties import determinism, limits
from torchgraft.sampling import Drawn, Packed, Sample, Samples, draw_packed, packed_samples

_DTYPES = (torch.float64, torch.float32)
_numbers = itertools.count()


def _ask(name: str, kernel: Callable[..., Any], *calls: tuple[Any, ...], **declared: Any) -> Any:
    """The result of one property of an operator of one kernel, whose samples are a few calls."""
    signature = declared.pop("signature", "(Tensor input) -> Tensor")
    options = {"dtypes": _DTYPES, "gradient": None, "reference": torch.square, **declared}
    operator = Operator(f"other_sizes::ask_{next(_numbers)}{signature}", kernels={"cpu": _DTYPES}, **options)
    operator.kernel("cpu")(kernel)
    samples = Samples([Sample(f"sample {number}", call) for number, call in enumerate(calls)])
    # The last dtype is float32, which is that of properties with only one.
    return check(operator, samples, device="cpu", properties=[name], quick=True).results[-1]


def _shapes_asked(name: str, kernel: Callable[..., Any], *calls: tuple[Any, ...], **declared: Any) -> set[Any]:
    """The sizes of the first argument in which a kernel is asked."""
    asked = set()

    def noting(first: Any, *others: Any) -> Any:
        asked.add(tuple(first.shape))
        return kernel(first, *others)

    result = _ask(name, noting, *calls, **declared)
    assert result.status == "pass", result
    return asked


def _raises(error: Exception) -> Any:
    def kernel(input: torch.Tensor) -> torch.Tensor:
        if input.shape[-1] > 1024:
            raise error
        return torch.square(input)

    return kernel


def _slow_at_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel whose first call works as long as one that imports and compiles."""
    calls = itertools.count()

    def kernel(*arguments: Any) -> Any:
        if next(calls) == 0:
            end = time.thread_time() + 0.5
            while time.thread_time() < end:
                pass
        return function(*arguments)

    return kernel


_PACKED = (Drawn((6, 2)), Drawn((3,), dtype=torch.int64, values=(0.0, 3.0, 6.0)))


def _sums_by_sequence(input: torch.Tensor, borders: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.cumsum(0) for part in input.split(borders.diff().tolist())])


def _ask_borders(
    kernel: Callable[..., Any], call: tuple[Any, ...] = _PACKED, reference: Any = _sums_by_sequence
) -> Any:
    return _ask(
        "borders",
        kernel,
        call,
        signature="(Tensor input, Tensor cu_seqlens) -> Tensor",
        reference=reference,
        output=lambda input, cu_seqlens: input.new_empty(input.shape),
        dtypes={"input": _DTYPES, "cu_seqlens": (torch.int64,)},
    )


class TestTelling:
    def test_a_first_call_and_other_programs_take_no_time_of_other_samples(self, monkeypatch):
        monkeypatch.setattr(regimes, "_QUICK_SECONDS", 0.3)
        turn = itertools.count()

        def kernel(input: torch.Tensor) -> torch.Tensor:
            # Some calls wait, as on a machine that other programs keep busy.
            if next(turn) % 10 == 9:
                time.sleep(0.1)
            return torch.square(input)

        asked = _shapes_asked("value_regimes", _slow_at_first(kernel), (Drawn((2, 3)),), (Drawn((5,)),))
        assert {(2, 3), (5,)} <= asked


class TestBorders:
    def test_of_one_sample_all_that_matter_are_asked(self):
        asked = set()

        def noting(input, borders):
            asked.add(tuple(borders.tolist()))
            return _sums_by_sequence(input, borders)

        assert _ask_borders(noting).status == "pass"
        assert {(0, 6), (0, 0, 6), (0, 6, 6), (0, 1, 6), (0, 5, 6), (0, 1, 2, 3, 4, 5, 6)} <= asked

    @pytest.mark.parametrize("wrong", [(0, 0, 6), (0, 5, 6)])
    def test_a_wrong_result_names_them(self, wrong):
        def kernel(input, borders):
            return _sums_by_sequence(input, borders) + (tuple(borders.tolist()) == wrong)

        result = _ask_borders(kernel)
        assert result.failure.message.startswith(f"with cu_seqlens {list(wrong)}: the result is wrong")

    def test_an_index_that_does_not_end_at_a_size_says_nothing_of_borders(self):
        call = (Drawn((6, 2)), Drawn((3,), dtype=torch.int64, values=(0.0, 3.0, 5.0)))
        copy = lambda input, index: input.clone()  # noqa: E731
        assert _ask_borders(copy, call, copy).status == "not applicable"


class TestLarge:
    def test_an_offset_that_wraps_in_32_bits_without_a_sign_is_seen(self):
        def kernel(input):
            rows = [row * input.stride(0) % 2**32 for row in range(input.shape[0])]
            return torch.stack([input.as_strided(input.shape[1:], input.stride()[1:], row) for row in rows]).square()

        result = _ask("large", kernel, (Drawn((5, 2)),))
        assert "2**30 + 64 elements from one to the next" in result.failure.message


class TestLimits:
    def test_each_size_grows_beyond_what_blocks_and_grids_hold(self):
        asked = _shapes_asked("limits", torch.square, (Drawn((2, 3)),))
        assert {(2, 1030), (2, 4099), (2, 70001), (1030, 3), (4099, 3), (70001, 3)} <= asked

    @pytest.mark.parametrize(
        ("drawn", "of_result", "values"),
        [
            (Drawn((5,), dtype=torch.int64, low=2, high=9), None, {8}),
            (Drawn((5,), dtype=torch.bool), None, {1}),
            (Drawn((5,), dtype=torch.int16), None, {2**15 - 1}),
            (Drawn((5,), dtype=torch.int16, high=9), None, {8}),
            (Drawn((5,)), torch.bool, {1}),
            (Drawn((5,), high=0.5), torch.int64, {0.5}),
            (Drawn((5,)), None, set()),
            (Drawn((5,), values=(1.0, 2.0)), torch.bool, set()),
        ],
    )
    def test_numbers_that_may_be_counted_are_all_equal(self, drawn, of_result, values):
        asked = set()

        def copy(input):
            return input.clone() if of_result is None else input.to(of_result)

        def noting(input):
            if len(input) > 256 and bool((input == input[0]).all()):
                asked.add((len(input), input[0].item()))
            return copy(input)

        dtypes = _DTYPES if drawn.dtype is None else (drawn.dtype,)
        operator = Operator(
            f"other_sizes::ask_{next(_numbers)}(Tensor input) -> Tensor",
            reference=copy,
            dtypes=dtypes,
            kernels={"cpu": dtypes},
        )
        operator.kernel("cpu")(noting)
        samples = Samples([Sample("five", (drawn,))])
        assert check(operator, samples, device="cpu", properties=["limits"], quick=True).results[-1].status == "pass"
        assert asked == {(size, value) for size in (1030, 70001, 140001) for value in values}

    def test_of_two_tensors_one_has_the_largest_numbers_and_one_the_smallest(self):
        asked = set()

        def differences(one, other):
            if len(one) > 256 and one.unique().numel() == other.unique().numel() == 1:
                asked.add((one[0].item(), other[0].item()))
            return one ^ other

        operator = Operator(
            f"other_sizes::ask_{next(_numbers)}(Tensor one, Tensor other) -> Tensor",
            reference=torch.bitwise_xor,
            dtypes=(torch.uint8,),
            kernels={"cpu": (torch.uint8,)},
        )
        operator.kernel("cpu")(differences)
        samples = Samples([Sample("five", (Drawn((5,), dtype=torch.uint8), Drawn((5,), dtype=torch.uint8)))])
        assert check(operator, samples, device="cpu", properties=["limits"], quick=True).results[-1].status == "pass"
        assert asked == {(255, 255), (255, 0)}

    def test_equal_terms_that_are_added_in_turn_may_err_in_one_direction(self):
        def total(weight, index):
            return weight[index].sum(0)

        def in_turn(weight, index):
            return weight[index].cumsum(0)[-1] if len(index) else weight.sum(0) * 0

        call = Drawn((2, 5)), Drawn((7,), dtype=torch.int64)
        declared = {"reference": total, "dtypes": {"weight": _DTYPES, "index": (torch.int64,)}}
        assert _ask(
            "limits", in_turn, call, signature="(Tensor weight, Tensor index) -> Tensor", **declared
        ).status == ("pass")

    @pytest.mark.parametrize(("bits", "size"), [(8, "1,024"), (16, "70,001")])
    def test_a_counter_that_is_too_narrow_is_seen(self, bits, size):
        def narrow(input):
            return input.sum(-1) % 2**bits

        operator = Operator(
            f"other_sizes::ask_{next(_numbers)}(Tensor input) -> Tensor",
            reference=lambda input: input.sum(-1),
            dtypes=(torch.bool,),
            kernels={"cpu": (torch.bool,)},
        )
        operator.kernel("cpu")(narrow)
        samples = Samples([Sample("two rows", (Drawn((2, 7), dtype=torch.bool),))])
        (result,) = check(operator, samples, device="cpu", properties=["limits"], quick=True).results
        assert f"size {size} in dimension 1 of input" in result.failure.message
        assert f"more than {bits} bits count" in result.failure.message or bits == 8

    def test_a_sum_that_is_kept_in_halves_shows_in_long_rows(self):
        def in_halves(input):
            return functools.reduce(torch.add, input.square().unbind(-1))

        operator = Operator(
            f"other_sizes::ask_{next(_numbers)}(Tensor input) -> Tensor",
            reference=lambda input: input.double().square().sum(-1).to(input.dtype),
            dtypes=(torch.float16,),
            kernels={"cpu": (torch.float16,)},
            gradient=None,
        )
        operator.kernel("cpu")(in_halves)
        samples = Samples([Sample("two rows", (Drawn((2, 7)),))], summed=lambda input: max(input.shape[-1], 1))
        (result,) = check(operator, samples, device="cpu", properties=["limits"], quick=True).results
        assert result.failure.message.startswith("with size ")

    def test_equal_sizes_that_belong_together_grow_together(self):
        asked = _shapes_asked(
            "limits",
            torch.mul,
            (Drawn((2, 3)), Drawn((2, 3))),
            signature="(Tensor input, Tensor factor) -> Tensor",
            reference=torch.mul,
            shapes="r c, r c -> r c",
        )
        assert (1030, 3) in asked

    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (ValueError("at most 1,024"), "pass"),
            (NotImplementedError("at most 1,024"), "pass"),
            (IndexError("out of range"), "fail"),
            (ZeroDivisionError("division by zero"), "fail"),
        ],
    )
    def test_a_refusal_is_an_answer_and_an_accident_is_none(self, error, status):
        assert _ask("limits", _raises(error), (Drawn((2, 3)),)).status == status

    def test_a_first_call_takes_no_time_of_others(self, monkeypatch):
        monkeypatch.setattr(limits, "_QUICK_SECONDS", 0.3)
        assert (1, 70_001) in _shapes_asked("limits", _slow_at_first(torch.square), (Drawn((1, 3)),))

    def test_what_takes_long_is_left_out(self):
        def slow(input):
            end = time.process_time() + 0.001 * len(input)
            while time.process_time() < end:
                pass
            return torch.square(input)

        asked = _shapes_asked("limits", slow, (Drawn((3, 2)),))
        assert (65, 2) in asked
        assert max(rows for rows, _ in asked) < 4099

    def test_what_a_reference_computes_on_the_way_fits_into_memory(self):
        def distances(input):
            return (input[:, None] - input).square().sum((1, 2))

        def quick(input):
            return len(input) * input.square().sum(1) + input.square().sum() - 2 * input @ input.sum(0)

        asked = _shapes_asked("limits", quick, (Drawn((3, 2)),), reference=distances, shapes="n d -> n")
        assert (1030, 2) in asked
        assert (70001, 2) not in asked

    def test_sums_whose_terms_the_samples_do_not_count_may_err_as_much_as_long_ones(self):
        def one_by_one(input):
            return input.cumsum(-1)[..., -1]

        assert _ask("limits", one_by_one, (Drawn((2, 3)),), reference=lambda input: input.sum(-1)).status == "pass"

    def test_where_the_reference_errs_as_much_in_its_dtype_nothing_is_asked(self):
        def cancelling(input):
            return (input + 1e6) - 1e6

        assert _ask("value", cancelling, (Drawn((2, 3)),), reference=cancelling).status == "fail"
        assert _ask("limits", cancelling, (Drawn((2, 3)),), reference=cancelling).status == "pass"

    def test_offsets_and_as_many_positions_as_they_say_stay(self):
        def sums(input, offsets):
            return torch.stack([input[start:end].sum(0) for start, end in itertools.pairwise(offsets.tolist())])

        asked = _shapes_asked(
            "limits",
            sums,
            (Drawn((7, 2)), Packed((3, 4)).cu_seqlens()),
            signature="(Tensor input, Tensor offsets) -> Tensor",
            reference=sums,
            dtypes={"input": _DTYPES, "offsets": (torch.int32,)},
            output=lambda input, offsets: input.new_empty(offsets.shape[0] - 1, input.shape[1]),
        )
        assert (7, 1030) in asked
        assert {rows for rows, _ in asked} == {7}


class TestEqualSizes:
    def test_sizes_become_equal_are_exchanged_and_become_one(self):
        asked = _shapes_asked("equal_sizes", torch.square, (Drawn((2, 3)),))
        assert {(3, 3), (2, 2), (3, 2), (1, 3), (2, 1), (1, 1)} <= asked

    def test_sizes_that_are_equal_in_all_samples_become_different(self):
        asked = _shapes_asked("equal_sizes", torch.square, (Drawn((4, 4)),))
        assert {(5, 4), (4, 5)} <= asked

    def test_a_tensor_of_one_row_stands_for_all_rows_if_the_reference_says_so(self):
        def added_one_by_one(left, right):
            sizes = torch.broadcast_shapes(left.shape, right.shape)
            places = torch.arange(sizes.numel())
            one, other = (each.reshape(-1)[places % each.numel()] for each in (left, right))
            return (one + other).view(sizes)

        calls = (Drawn((2, 3)), Drawn((2, 3)))
        signature = "(Tensor left, Tensor right) -> Tensor"
        result = _ask("equal_sizes", added_one_by_one, calls, signature=signature, reference=torch.add)
        # One row in the place of two lies in memory as two would; one column in the place of three does not.
        assert result.failure is not None
        assert result.failure.message.startswith("with size 1 in dimension 1 of left: the result is wrong")
        declared = {"signature": signature, "reference": torch.add, "shapes": "r c, r c -> r c"}
        assert _ask("equal_sizes", added_one_by_one, calls, **declared).status == "pass"

    def test_indices_stay_below_the_sizes_that_they_are_places_along(self):
        asked = _shapes_asked(
            "equal_sizes",
            lambda table, index: table[index],
            (Drawn((6, 3)), Drawn((4,), dtype=torch.int64, high=6)),
            signature="(Tensor table, Tensor index) -> Tensor",
            reference=lambda table, index: table.index_select(0, index),
            dtypes={"table": _DTYPES, "index": (torch.int64,)},
        )
        assert min(rows for rows, _ in asked) == 6


class TestRanks:
    def test_dimensions_are_added_in_front_and_taken_away(self):
        asked = _shapes_asked("ranks", torch.square, (Drawn((4, 5)),))
        assert asked >= {(2, 4, 5), (2, 3, 4, 5), (5,), ()}

    def test_they_stand_where_the_shapes_have_dots(self):
        asked = _shapes_asked("ranks", torch.square, (Drawn((4, 6, 5)),), shapes="n ... d -> n ... d")
        assert asked >= {(4, 2, 6, 5), (4, 2, 3, 6, 5), (4, 5)}

    def test_shapes_without_dots_leave_nothing_to_ask(self):
        assert _ask("ranks", torch.square, (Drawn((4, 5)),), shapes="n d -> n d").status == "not applicable"

    def test_tensors_that_are_always_alike_change_together_and_others_stay(self):
        asked = set()

        def kernel(input, factor, weight):
            asked.add((input.dim(), factor.dim(), weight.dim()))
            return input * factor * weight

        result = _ask(
            "ranks",
            kernel,
            (Drawn((4, 5)), Drawn((4, 5)), Drawn((5,))),
            signature="(Tensor input, Tensor factor, Tensor weight) -> Tensor",
            reference=kernel,
        )
        assert result.status == "pass"
        assert (3, 3, 1) in asked
        assert all(one == other for one, other, _ in asked)

    def test_any_error_is_an_answer_where_no_rank_was_promised(self):
        def of_rows(input):
            if input.dim() == 0:
                raise IndexError("tuple index out of range")
            return torch.square(input)

        assert _ask("ranks", of_rows, (Drawn((4, 5)),)).status == "pass"
        assert _ask("ranks", of_rows, (Drawn((4, 5)),), shapes="... -> ...").status == "fail"


class TestPacked:
    def test_offsets_begin_with_zero_and_end_before_the_padding(self):
        packed = Packed((3, 0, 2), padding=4)
        assert packed.cu_seqlens().values == (0, 3, 3, 5)
        assert packed.starts().values == (0, 3, 3)
        assert packed.seq_idx().values == (0, 0, 0, 2, 2, -1, -1, -1, -1)
        assert (packed.sequences, packed.positions, packed.longest) == (3, 9, 3)

    @pytest.mark.parametrize("lengths", [(3, 1, 2), (1,), (2, 2, 2), (1, 5)])
    def test_sizes_of_batches_are_those_of_pytorch(self, lengths):
        sequences = [torch.zeros(length) for length in lengths]
        expected = pack_sequence(sequences, enforce_sorted=False).batch_sizes
        (found,) = Sample("packed", (Packed(lengths).batch_sizes(),)).make("cpu", torch.float32)
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("packed", [Packed((3, 0)), Packed((3,), padding=1)])
    def test_a_packed_sequence_has_no_empty_ones_and_no_padding(self, packed):
        with pytest.raises(ValueError, match="neither padding nor sequences of no length"):
            packed.batch_sizes()

    @pytest.mark.parametrize(("lengths", "padding"), [((1, -1), 0), ((1,), -1), ((), -2)])
    def test_negative_lengths_are_refused(self, lengths, padding):
        with pytest.raises(ValueError, match="must not be negative"):
            Packed(lengths, padding)

    def test_samples_have_what_an_operator_allows(self):
        asked: list[Packed] = []

        def make(packed):
            asked.append(packed)
            return Drawn((packed.positions,)), packed.cu_seqlens()

        assert len(packed_samples(make)) == len(asked)
        assert any(0 in packed.lengths for packed in asked)
        assert any(packed.padding for packed in asked)
        asked.clear()
        packed_samples(make, empty=False, padding=False)
        assert asked
        assert not any(0 in packed.lengths or packed.padding for packed in asked)

    def test_drawn_batches_have_what_an_operator_allows(self):
        drawn = [draw_packed(Random(seed), empty=False, padding=False) for seed in range(50)]
        assert all(packed.batch_sizes().elements == packed.longest for packed in drawn)
        assert any(draw_packed(Random(seed)).padding for seed in range(50))

    def test_no_sequences_have_no_offsets_but_one(self):
        assert Packed(()).cu_seqlens().values == (0,)
        (starts,) = Sample("none", (Packed(()).starts(),)).make("cpu", torch.float32)
        assert starts.shape == (0,)
        assert starts.dtype == torch.int64


class TestDrawnByMachine:
    """The calls that `sizes` asks beside the samples that an author draws."""

    @staticmethod
    def _ask(kernel, *call, reference=None, **declared):
        operator = Operator(
            f"other_sizes::ask_{next(_numbers)}{declared.pop('signature')}",
            reference=reference or kernel,
            **{"dtypes": (torch.float32,), "kernels": {"cpu": (torch.float32,)}, **declared},
        )
        operator.kernel("cpu")(kernel)
        samples = Samples([Sample("a sample", call)])
        return check(operator, samples, device="cpu", properties=["sizes"], quick=True).results[-1]

    def _calls_asked(self, *call, **declared):
        asked = []

        def noting(input, number):
            asked.append((tuple(input.shape), number))
            return input * number

        result = self._ask(
            noting,
            *call,
            reference=lambda input, number: input * number,
            signature="(Tensor input, int number) -> Tensor",
        )
        assert result.status == "pass", result
        return asked

    def test_sizes_and_whole_numbers_become_many_others(self):
        asked = self._calls_asked(Drawn((2, 6)), 9)
        assert len({*asked}) > 150
        assert {number for _, number in asked} > {1, 5, 9}
        assert max(max(shape) for shape, _ in asked) > 100
        assert all(rows * columns <= 2**13 for (rows, columns), _ in asked)

    def test_the_same_calls_come_again(self):
        few = slice(100)
        assert self._calls_asked(Drawn((2, 6)), 9)[few] == self._calls_asked(Drawn((2, 6)), 9)[few]

    def test_where_there_may_be_indices_sizes_and_numbers_only_grow(self):
        asked = []

        def count(input, bins):
            return torch.zeros(bins, dtype=torch.int64).index_add(0, input, torch.ones_like(input))

        def noting(input, bins):
            asked.append((len(input), bins))
            return count(input, bins)

        result = self._ask(
            noting,
            Drawn((5,), dtype=torch.int64, high=3),
            3,
            reference=count,
            signature="(Tensor input, int bins) -> Tensor",
            dtypes=(torch.int64,),
            kernels={"cpu": (torch.int64,)},
        )
        assert result.status == "pass"
        assert min(size for size, _ in asked) >= 5
        assert min(bins for _, bins in asked) >= 3

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda rows, columns, number: columns % 16 == 13,
            lambda rows, columns, number: (rows * columns) % 16 == 15,
            lambda rows, columns, number: number % 32 == 31,
            lambda rows, columns, number: columns > 64 and rows < 8,
            lambda rows, columns, number: number > columns and columns % 4,
        ],
    )
    def test_a_call_that_is_wrong_is_found_and_described(self, wrong):
        def times(input, number):
            return input * number

        def kernel(input, number):
            return times(input, number) + bool(wrong(*input.shape, number))

        result = self._ask(kernel, Drawn((2, 6)), 9, reference=times, signature="(Tensor input, int number) -> Tensor")
        assert result.status == "fail"
        assert result.failure.message.startswith("with ")
        assert result.failure.sample == "a sample"
        assert result.failure.at_fault.startswith("the kernel")

    @pytest.mark.parametrize(
        ("error", "status"), [(ValueError("too many"), "pass"), (IndexError("out of range"), "fail")]
    )
    def test_a_refusal_is_an_answer(self, error, status):
        def kernel(input, number):
            if number > 100:
                raise error
            return input * number

        signature = "(Tensor input, int number) -> Tensor"
        call = Drawn((2, 6)), 9
        assert self._ask(kernel, *call, reference=lambda input, number: input * number, signature=signature).status == (
            status
        )

    def test_where_nothing_can_change_the_property_does_not_apply(self):
        result = self._ask(lambda input: input.clone(), Drawn(()), signature="(Tensor input) -> Tensor")
        assert result.status == "not applicable"


class TestDeterminism:
    def test_small_samples_grow_until_several_threads_have_a_share(self):
        asked = set()

        def noting(input):
            asked.add((tuple(input.shape), torch.get_num_threads()))
            return torch.square(input)

        assert _ask("determinism", noting, (Drawn((2, 3)),)).status == "pass"
        assert {((300001, 3), 4), ((2, 300001), 4)} <= asked

    def test_what_changes_only_in_large_calls_is_seen(self):
        turn = itertools.count()

        def kernel(input):
            return torch.square(input) + (next(turn) % 5 == 4 and len(input) > 65536)

        result = _ask("determinism", kernel, (Drawn((2, 3)),))
        assert "with size 300,001 in dimension 0 of input: a result differs between run 1 and" in result.failure.message

    def test_a_thread_that_waits_for_its_turn_does_not_shorten_the_check(self):
        sizes = list[int]()

        def waiting(input):
            # As on a machine that other programs keep busy.
            time.sleep(0.02)
            sizes.append(input.numel())
            return torch.square(input)

        assert _ask("determinism", waiting, (Drawn((2,)),)).status == "pass"
        assert sizes.count(300_001) == 1 + determinism._LARGE_RUNS
