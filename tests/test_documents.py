"""The documents of `--json`: a schema for each, which is current; other tests compare what commands write with it."""

import copy
import json
from pathlib import Path

import pytest
import torch
import typer.main

import schemas
import torchgraft
from documents import SCHEMAS, read_document, validator_of
from reports import make_report, make_row
from torchgraft.benchmarking.distrusted import DistrustedReport, DistrustedRow
from torchgraft.benchmarking.explaining import Served
from torchgraft.benchmarking.timing import Time
from torchgraft.cli import app
from torchgraft.machine.documents import FORMATS, as_document
from torchgraft.machine.environment import describe_environment
from torchgraft.operator import Operator
from torchgraft.sampling import Drawn, Sample, Samples

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_is_current(name):
    assert (SCHEMAS / f"{name}.json").read_text() == schemas.text_of(name), "run `python tools/schemas.py`"


def test_each_document_has_a_schema_and_each_command_that_writes_one_is_named():
    assert {path.stem for path in SCHEMAS.iterdir()} == set(FORMATS)
    titles = [json.loads(path.read_text())["title"] for path in SCHEMAS.iterdir()]
    named = ", ".join(title.partition(": ")[2] for title in titles).split(", ")

    def writing(path, command):
        if any("--json" in each.opts for each in command.params):
            yield path
        for word, inner in getattr(command, "commands", {}).items():
            yield from writing(f"{path} {word}", inner)

    assert set(writing("graft", typer.main.get_command(app))) <= set(named)


def test_the_page_names_each_schema():
    page = (ROOT / "docs/api/commands.md").read_text()
    for name in FORMATS:
        assert f"[{name}.json](../../src/torchgraft/cli/schemas/{name}.json)" in page


def test_a_check_that_fails_is_as_its_schema_says():
    wrong = Operator(
        "documents::tripled(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        output=torch.empty_like,
        kernels={"cpu": (torch.float32,)},
        dtypes=(torch.float32,),
    )
    wrong.kernel("cpu")(lambda input: 3 * input)
    samples = Samples([Sample("a row", (Drawn((3,)),))])
    report = torchgraft.check(wrong, samples, device="cpu", properties=["value"])
    document = read_document("check", as_document("check", report.as_dict()))
    assert document["results"][0]["failure"]["sample"] == "a row"
    assert not document["passed"]


def test_rows_of_every_kind_are_as_the_schema_says():
    row = make_row("served", served={"torchgraft": (Served("gemm", 1e-6),)}, chosen=("slide",), others=0.5)
    report = make_report([*make_report().rows, row], drawn=(2, 7))
    assert read_document("bench", report.as_json())["rows"][-1]["served"]


def test_times_of_a_distrusted_kernel_are_as_the_schema_says():
    time = Time(1e-3, 9e-4, float("nan"))
    rows = (DistrustedRow("twice", "sizes", "few", "float32", time, time, time), DistrustedRow("a", "b", "c", "d"))
    report = DistrustedReport("kernel.py:fast", rows, 3, describe_environment())
    assert read_document("bench-distrust", as_document("bench-distrust", report.as_dict()))["passed"]


def test_a_schema_refuses_what_is_not_its_document():
    document = json.loads(make_report().as_json())
    validator = validator_of("bench")
    assert validator.is_valid(document)
    for change in (
        lambda it: it.pop("format"),
        lambda it: it.update(format=2),
        lambda it: it.update(unnamed=1),
        lambda it: it["rows"][0].pop("floor"),
        lambda it: it["rows"][0].update(moved="many"),
        lambda it: it["environment"].update(threads=None),
    ):
        changed = copy.deepcopy(document)
        change(changed)
        assert not validator.is_valid(changed)
