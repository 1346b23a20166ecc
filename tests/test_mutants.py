"""Mutants: the rewritten source holds each small change, and a table of samples that lacks a case is told so."""

import io
import json
import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from documents import read_document
from torchgraft.checking.mutants import ask, folders, known_calls, run
from torchgraft.checking.mutants.changes import ADVICE, find_mutants, rewrite
from torchgraft.checking.mutants.folders import (
    EQUIVALENT,
    ON_CPU,
    Folder,
    MutantError,
    MutantPlace,
    Outcome,
    find_folders,
    random_mutants,
)
from torchgraft.checking.mutants.library import MutantLibrary
from torchgraft.checking.mutants.questions import Question
from torchgraft.checking.mutants.workers import Worker, quickest
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.subject import find_subjects
from torchgraft.cli import app, mutants
from torchgraft.operator import Operator
from torchgraft.sampling import Drawn, Sample, Samples


def changes(body):
    found = find_mutants("kernel.cpp", f"void f() {{\n{body}\n}}\n".encode())
    assert all(each.line == 2 and each.shown[0] == body for each in found)
    return {(each.kind, each.shown[1]) for each in found}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("g(a < b);", {("boundary", "g(a <= b);")}),
        ("g(a >= b);", {("boundary", "g(a > b);")}),
        ("g(a && b);", {("condition", "g(a);"), ("condition", "g(b);")}),
        ("if (a) g();", {("condition", "if (true) g();"), ("condition", "if (false) g();")}),
        ("g(a ? b : c);", {("condition", "g(b);"), ("condition", "g(c);")}),
        ("g(a + b);", {("term", "g(a);"), ("term", "g(b);")}),
        ("g(a - b);  // a + b", {("term", "g(a);  // a + b")}),
        ("int* a; g(a + b);", {("term", "int* a; g(a);")}),
        ("a += b;", {("term", "")}),
        ("g(a[i]);", {("index", "g(a[(i) + 1]);"), ("index", "g(a[(i) - 1]);")}),
        ("g(a, b);", {("swap", "g(b, a);")}),
        ("int a, b; g(a, b);", {("swap", "int a, b; g(b, a);")}),
        ("g(std::min(a, b));", {("bound", "g(a);"), ("bound", "g(b);")}),
        ("g(std::clamp<int64_t>(a, b, c));", {("bound", "g(a);")}),
        ("__syncthreads();", {("barrier", "")}),
        (
            "parallel_for(0, a + b, std::max(c, d), f);",
            {("term", f"parallel_for(0, {each}, std::max(c, d), f);") for each in "ab"},
        ),
        (
            "int64_t grain = a + b; g(grain); parallel_for(0, 1, grain, [&] {});",
            {("term", f"int64_t grain = {each}; g(grain); parallel_for(0, 1, grain, [&] {{}});") for each in "ab"},
        ),
        ("wait_for_copies<2>();", {("barrier", "")}),
        ("KERNEL<<<a + b, c>>>(i);", set()),
    ],
)
def test_a_place_is_changed(body, expected):
    assert changes(body) == expected
    assert {kind for kind, _ in expected} <= set(ADVICE)


@pytest.mark.parametrize(
    "body",
    [
        "constexpr int a = b + c;",
        "static_assert(a < b);",
        "int a[b + c];",
        "using T = A<(b < c)>;",
        "if constexpr (a < b) g();",
        "switch (a) { case b + 1: g(); }",
        'g(a + "text");',
        "int a; float* b; g(a, b);",
        "Line a; Rows b; g(a, b);",
        "g(same_device(a, b));",
        "g(std::fmax(a, b));",
        "const int64_t grain = std::max<int64_t>(kGrain / columns, 1); parallel_for(0, 9, grain, [&] {});",
        "g([&] { return a; } < b);",
        "parallel_for(0, count, std::max<int64_t>(kGrain / (columns + 1), 1), [&](int64_t first, int64_t last) {});",
        "torchgraft::sum_rows<double>(rows.count, 3, kGrain + 1, to, [&](int64_t first, int64_t last, double* s) {});",
    ],
)
def test_constants_and_text_are_left_alone(body):
    assert changes(body) == set()


def test_what_stands_around_functions_is_left_alone():
    assert find_mutants("kernel.cpp", b"const int a = b + c;\nint f(int i = a + 1);\n") == []


def test_one_program_holds_every_mutant(tmp_path):
    source = b"""#include <cstdio>
#include <cstdlib>
constexpr int below(int n) { return n < 3 && n != 1 ? n + 4 : 7; }
static_assert(below(2) == 6);
int sum(const int* values, int count) {
  int total = 0;
  for (int i = 0; i < count; ++i)
    if (values[i] > 2) total += values[i];
    else total -= 1;
  return total;
}
int main(int, char** arguments) {
  const int values[] = {3, 2, 5, 100};
  torchgraft_choose_mutant(std::atoi(arguments[1]), nullptr);
  std::printf("%d %d %d\\n", below(std::atoi("2")), sum(values, 3), __LINE__);
}
"""
    mutants = find_mutants("program.cpp", source)
    (tmp_path / "program.cpp").write_bytes(rewrite(source, dict(enumerate(mutants)), "program.cpp"))
    compiled = ["g++", "-std=c++20", "program.cpp", "-o", "program"]
    subprocess.run(compiled, check=True, cwd=tmp_path)

    def run(number):
        return subprocess.run([tmp_path / "program", str(number)], capture_output=True, text=True, check=True).stdout

    # -1 is of the second value; the rewritten lines have their numbers.
    assert run(-1) == "6 7 15\n"
    expected = {
        "for (int i = 0; i <= count; ++i)": "6 107 15\n",
        "if (true) total += values[i];": "6 10 15\n",
        "if (false) total += values[i];": "6 -3 15\n",
        "if (values[i] >= 2) total += values[i];": "6 10 15\n",
        "if (values[i] > 2)": "6 -1 15\n",
        "else": "6 8 15\n",
        "if (values[(i) + 1] > 2) total += values[i];": "6 6 15\n",
        "constexpr int below(int n) { return n < 3 && n != 1 ? n : 7; }": "2 7 15\n",
        "constexpr int below(int n) { return 7; }": "7 7 15\n",
    }
    found = {each.shown[1].strip(): run(number) for number, each in enumerate(mutants)}
    assert expected.items() <= found.items()


def folder(tmp_path):
    (tmp_path / "cpu.cpp").write_text('#include "inner/loop.h"\nvoid f() { g(a < b, c + 1, d[i]); }\n')
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/loop.h").write_text("inline void g() { if (a) b(); }\n")
    (tmp_path / "other.h").write_text("inline void h() { if (a) b(); }\n")
    return Folder(tmp_path, ON_CPU, [])


def test_random_mutants_are_of_all_files_that_are_compiled(tmp_path):
    made = folder(tmp_path)
    assert set(made.sources) == {"cpu.cpp", "inner/loop.h"}
    chosen = random_mutants([made], 4, seed=0)[0]
    assert Counter(each.file for each in chosen) == {"cpu.cpp": 2, "inner/loop.h": 2}
    assert random_mutants([made], 4, seed=0)[0] == chosen
    assert sorted(random_mutants([made], 100, seed=1)[0], key=made.mutants.index) == made.mutants


def test_a_file_of_which_nothing_changes_results_is_left_out(tmp_path):
    (tmp_path / EQUIVALENT).write_text(json.dumps([{"file": "inner/loop.h", "why": "it says what is quickest"}]))
    assert {each.file for each in folder(tmp_path).mutants} == {"cpu.cpp"}


def test_what_is_equivalent_on_another_device_counts_there_alone(tmp_path):
    made = folder(tmp_path)
    original, changed = made.mutants[0].shown
    entry = {"file": made.mutants[0].file, "original": original, "changed": changed, "why": "both do the same"}
    for device, listed in (("cpu", 1), ("cuda", 0)):
        (tmp_path / EQUIVALENT).write_text(json.dumps([{**entry, "device": device}]))
        assert len(Folder(tmp_path, ON_CPU, []).equivalent) == listed


def test_what_one_build_does_not_tell_apart_is_asked_in_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.platform, "machine", lambda: "x86_64")
    made = folder(tmp_path)
    assert len(made.builds) == 1
    (tmp_path / "cpu.cpp").write_bytes(made.sources["cpu.cpp"] + b"TORCHGRAFT_VECTOR_CLONES(void f(), g();)\n")
    made = Folder(tmp_path, ON_CPU, [])
    made.work = tmp_path / "work"
    narrow, wide = made.builds
    asked = made.mutants[:5]
    told = {
        narrow: ["killed", "survived", "survived", "not reached"],
        wide: [None, "killed", "not reached", "survived"],
    }
    monkeypatch.setattr(
        Folder, "build", lambda self, chosen, directory: (directory, [4] if directory == narrow else [])
    )
    monkeypatch.setattr(
        run,
        "_ask",
        lambda folder, library, environment, chosen, *rest: [
            {"mutant": number, "status": told[library][number], "how": "", "by": library.name} for number in chosen
        ],
    )
    found = run.run_mutants(made, asked, seed=0, workers=1)
    by_mutant = {outcome.mutant: outcome.status for outcome in found}
    expected = ["killed", "killed", "survived", "survived", "does not compile"]
    assert [by_mutant[mutant] for mutant in asked] == expected


def test_what_one_of_two_workers_tells_apart_is_told_apart_and_both_must_have_asked_about_a_survivor():
    def answer(mutant, status, seconds):
        return {"mutant": mutant, "status": status, "seconds": seconds}

    told = []
    answers = [
        {"questions": 3, "seconds": 1.0, "problems": []},
        answer(0, "survived", 1.0),
        answer(1, "killed", 2.0),
        {"questions": 4, "seconds": 0.5, "problems": []},
        answer(2, "not reached", 0.0),
        answer(1, "killed", 3.0),
        answer(2, "survived", 4.0),
        answer(0, "killed", 5.0),
        answer(3, "survived", 6.0),
    ]
    ask._merge(answers, 2, told.append)
    assert told == [
        {"questions": 3, "seconds": 1.0, "problems": []},
        answer(1, "killed", 2.0),
        {"questions": 7, "seconds": 1.5, "problems": []},
        answer(2, "survived", 4.0),
        answer(0, "killed", 6.0),
    ]


def test_workers_begin_at_different_mutants_and_ask_about_all():
    orders = [list(Worker(number, 3, None, None, None)._in_turn(range(8))) for number in range(3)]
    assert orders == [[0, 1, 2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 0, 1, 6, 7], [4, 5, 0, 1, 2, 3, 7, 6]]


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 1), (0.9, 1), (1.0, 2), (2.9, 2), (3.0, 3), (9.0, 3)])
def test_a_mutant_that_is_listed_is_asked_until_so_much_time_is_spent(seconds, asked):
    questions = [Question(str(each), lambda: None, seconds=each) for each in (1.0, 2.0, 4.0)]
    assert quickest(questions, seconds) == questions[:asked]


def test_what_one_worker_reaches_another_does_not_see():
    library = object.__new__(MutantLibrary)
    library._mutants = 3
    if (worker := os.fork()) == 0:
        library._reached[1] = 1
        os._exit(0)
    os.waitpid(worker, 0)
    assert library._reached[:] == bytes(3)


class TestKernelsThatAreNotForced:
    """Kernels that a measured choice may take, and the quicker way to record a gradient, are asked too."""

    @pytest.fixture
    def call(self):
        [subject] = find_subjects(["depthwise_conv2d"])
        sample = next(each for each in subject.samples.table if each.name == "3x3, 17 columns")
        return known_calls.KnownCall(subject.operator, subject.samples, sample, torch.device("cpu"), torch.float32, 0)

    def test_every_candidate_of_a_measured_choice_computes_what_it_did(self, call):
        known_calls.check_candidates(call)
        found = call.original(known_calls.by_candidates)
        assert {kernel for *_, kernel in found} == {"", "pytorch"}
        for changed, what in (
            ({each: results for each, results in found.items() if each[-1] != "pytorch"}, "other kernels"),
            ({each: [2 * results[0]] for each, results in found.items()}, "the result is wrong"),
            ({each: [results[0].permute(0, 1, 3, 2).contiguous().mT] for each, results in found.items()}, "strides"),
        ):
            call._originals[known_calls.by_candidates] = changed
            with pytest.raises(Exception, match=what):
                known_calls.check_candidates(call)

    def test_a_call_may_have_an_argument_that_must_be_named(self):
        def scaled(input, inverse):
            return input / 2 if inverse else input * 2

        operator = Operator("mutated::scaled(Tensor input, *, bool inverse=False) -> Tensor", reference=scaled)
        operator.kernel("cpu")(lambda input, *, inverse: scaled(input, inverse))
        samples = Samples([Sample("default", (Drawn((3,)),)), Sample("inverse", (Drawn((3,)), True))])
        try:
            for sample in samples.table:
                call = known_calls.KnownCall(operator, samples, sample, torch.device("cpu"), torch.float32, 0)
                with pytest.raises(NotApplicable, match="nothing is measured"):
                    known_calls.check_candidates(call)
        finally:
            operator.undeclare()

    def test_a_gradient_is_recorded_in_the_way_that_it_was(self, call, monkeypatch):
        known_calls.check_nodes(call)
        monkeypatch.delitem(call.operator.names.recorders, "cpu")
        with pytest.raises(Exception, match="another way"):
            known_calls.check_nodes(call)


def test_an_equivalent_mutant_that_is_none_any_more_is_an_error(tmp_path):
    made = folder(tmp_path)
    original, changed = made.mutants[0].shown
    entry = {"file": made.mutants[0].file, "original": original, "changed": changed, "why": "both do the same"}
    (tmp_path / EQUIVALENT).write_text(json.dumps([entry]))
    Folder(tmp_path, ON_CPU, []).expect_current()
    (tmp_path / EQUIVALENT).write_text(json.dumps([{**entry, "original": "what stood there"}]))
    with pytest.raises(MutantError, match="any more"):
        Folder(tmp_path, ON_CPU, []).expect_current()


def test_an_equivalent_mutant_that_is_told_apart_is_an_error_once_it_is_wherever_its_words_stand(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "kernel.cpp").write_text("int f(int a, int b) {\ng(a < b);\ng(a > b);\ng(a < b);\n}\n")
    entry = {"file": "kernel.cpp", "original": "g(a < b);", "changed": "g(a <= b);", "why": "both do the same"}
    (tmp_path / EQUIVALENT).write_text(json.dumps([entry]))
    made = Folder(tmp_path, ON_CPU, [])
    made.work.mkdir(parents=True)
    first, second = (mutant for mutant in made.mutants if mutant.shown == (entry["original"], entry["changed"]))
    made.keep(Outcome(first, "killed", by="value"))
    made.keep(Outcome(second, "survived"))
    made.expect_equivalent()
    assert [made.known()[each].status for each in (first, second)] == ["killed", "equivalent"]
    made.keep(Outcome(second, "killed", by="value"))
    with pytest.raises(MutantError, match="remove the entry"):
        made.expect_equivalent()


def test_every_equivalent_mutant_of_ours_is_there():
    assert find_folders([subject.operator for subject in find_subjects([])])


@pytest.mark.parametrize(
    ("suffix", "served"),
    [
        (".cpp", {"depthwise_conv1d", "depthwise_conv2d", "depthwise_conv3d"}),
        (".cu", {"depthwise_conv1d", "depthwise_conv2d"}),
    ],
)
def test_mutants_are_shown_the_samples_of_all_operators_whose_kernels_a_folder_holds(suffix, served):
    subject = find_subjects(["depthwise_conv1d"])[0]
    [found] = find_folders([subject.operator], MutantPlace("place", suffix, {}))
    assert found.path.name == "depthwise_conv2d"
    passes = "", "_input_grad", "_weight_grad"
    assert {operator.name for operator in found.operators} == {name + each for name in served for each in passes}


def test_what_survived_is_asked_again_when_samples_of_an_operator_of_another_folder_change(tmp_path, monkeypatch):
    kernels, beside = tmp_path / "kernels", tmp_path / "beside"
    for each in (kernels, beside):
        each.mkdir()
    (kernels / "cpu.cpp").write_text("void f() { g(a < b); }\n")
    monkeypatch.setattr(folders, "folder_of", lambda operator: beside)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def status():
        (subject,) = find_subjects(["linear"])
        made = Folder(kernels, ON_CPU, [subject.operator])
        made.work.mkdir(parents=True, exist_ok=True)
        found = made.known()
        made.keep(Outcome(made.mutants[0], "survived"))
        return [each.status for each in found.values()]

    assert (status(), status()) == ([], ["survived"])
    (beside / "samples.py").write_text("samples = {}\n")
    assert status() == []


def test_a_mutant_that_the_compiler_names_is_left_out(tmp_path):
    made = folder(tmp_path)
    numbered = dict(enumerate(made.mutants))
    first = numbered[0]
    assert made._blamed("mutants:2:7: error: no\nmutants:2:9: error: no\nx.h:1:1: error: no", numbered) == {1}
    at_line = made._blamed(f"{tmp_path}/{first.file}:{first.line}:3: error: no", numbered)
    assert at_line == {
        number for number, each in numbered.items() if (each.file, each.line) == (first.file, first.line)
    }


@pytest.mark.parametrize("other", [["--stress", "3"], ["--sanitize"], ["--property", "value"], ["--device", "cuda"]])
def test_another_question_beside_it_is_refused(other):
    refused = CliRunner().invoke(app, ["check", "shift", "--mutants", "5", *other])
    assert refused.exit_code == 2
    assert "--mutants can be combined only with" in refused.output


OPERATOR = """
from pathlib import Path

import torch
import torchgraft

operator = torchgraft.Operator(
    "mutated::running_sum(Tensor input) -> Tensor",
    reference=lambda input: torch.cumsum(input, 0),
    output=torch.empty_like,
)
torchgraft.native.load("mutated", Path(__file__).parent / "lib")
"""
SAMPLES = """
from torchgraft.sampling import Drawn, Sample, Samples

table = [Sample(str(size), (Drawn((size,)),)) for size in {sizes}]
samples = {{"running_sum": Samples(table, summed=lambda input: len(input))}}
"""
KERNEL = """
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include <algorithm>

namespace mutated {

using torchgraft::Tensor;
constexpr int64_t kBlock = 8;

Tensor running_sum_cpu(Tensor input) {
  return torchgraft::dispatch_floating(input.scalar_type(), "running_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = torchgraft::accumulate_t<T>;
    const Tensor source = torchgraft::to_dense(input);
    Tensor output = torchgraft::empty_as(source);
    const T* from = static_cast<const T*>(source.const_data_ptr());
    T* to = static_cast<T*>(output.mutable_data_ptr());
    const int64_t count = output.numel();
    A before = 0;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, count);
      A sum = 0;
      for (int64_t i = begin; i < end; ++i) {
        sum += static_cast<A>(from[i]);
        to[i] = static_cast<T>(before + sum);
      }
      before += sum;
    }
    return output;
  });
}

TORCHGRAFT_KERNEL(mutated, CPU, running_sum, running_sum_cpu)

}  // namespace mutated
"""
SAME = {
    "file": "cpu.cpp",
    "original": "for (int64_t begin = 0; begin < count; begin += kBlock) {",
    "changed": "for (int64_t begin = 0; begin <= count; begin += kBlock) {",
    "why": "a block that begins at the end holds nothing",
}


@pytest.mark.slow
def test_a_table_that_lacks_a_case_is_told_so(tmp_path):
    place = tmp_path / "running_sum"
    place.mkdir()
    (place / "operator.py").write_text(OPERATOR)
    (place / "cpu.cpp").write_text(KERNEL)
    (place / EQUIVALENT).write_text(json.dumps([SAME]))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def check(sizes):
        (place / "samples.py").write_text(SAMPLES.format(sizes=sizes))
        command = [sys.executable, "-m", "torchgraft", "check", str(place), "--mutants", "99", "--json", "out.json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        found = read_document("check-mutants", (tmp_path / "out.json").read_text())["mutants"]
        return SimpleNamespace(status=done.returncode, said=done.stdout + done.stderr, found=found)

    short = check([0, 1, 5])
    assert short.status == 1, short.said
    left = {each["original"] for each in short.found if each["status"] == "survived"}
    assert left == {"before += sum;", "const int64_t end = std::min(begin + kBlock, count);"} | {
        "to[i] = static_cast<T>(before + sum);"
    }
    assert "add a sample in which the term that is left out is not zero" in short.said
    # Only what survived is asked again, and nothing survives a sample of several blocks.
    whole = check([0, 1, 5, 29])
    assert whole.status == 0, whole.said
    assert Counter(each["status"] for each in whole.found)["equivalent"] == 1
    (kept,) = (tmp_path / "cache").glob("torchgraft/mutants/*/outcomes.jsonl")
    again = sum(each["status"] in ("survived", "equivalent") for each in short.found)
    assert len(kept.read_text().splitlines()) == len(short.found) + again
    assert "the samples detect every mutant" in whole.said


@pytest.mark.parametrize("status", ["killed", "survived"])
def test_a_survivor_is_told_where_changes_without_effect_are_listed(status):
    mutant = find_mutants("cpu.cpp", b"void f() { g(a < b); }\n")[0]
    console = Console(width=80, file=io.StringIO())
    mutants._print(console, [("folder", Outcome(mutant, status))], 1.0)
    told = console.file.getvalue()
    assert (f"list it with the reason in {folders.EQUIVALENT}" in told) == (status == "survived")
