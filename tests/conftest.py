"""Shared by every test: a fixed seed, two threads, and a clean slate for torch.compile."""

import gc
import os
import shutil
import time
import zlib
from dataclasses import replace
from random import Random

# Threads without work sleep, here and in every process that a test starts: spinning, those of two tests at a time
# take the cores from each other, and small problems take ten times as long. Read where PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

# Python looks for cycles a hundred times less often: among the millions of objects that a compiler leaves, that takes
# a seventh of the time of all tests.
gc.set_threshold(50_000, 20, 50)


_NO_TIME = "the time that --minutes gives is over"
_BEGAN = time.monotonic()


def pytest_addoption(parser):
    parser.addoption("--order", metavar="WORD", help="shuffle the files, and the properties of operators, by a word")
    parser.addoption("--minutes", type=float, default=float("inf"), help="begin no test once they have passed")


def pytest_configure(config):
    # Of xdist, the process that hands out tests needs nothing of what takes seconds to import.
    if not config.getoption("numprocesses", None):
        from hypothesis import settings

        # Each example is a convolution or two; the machine decides how long that takes, not the test.
        settings.register_profile("torchgraft", deadline=None, max_examples=60, derandomize=True, print_blob=True)
        settings.load_profile("torchgraft")


# What takes seconds and looks at what calls an operator, more than at the operator.
_OF_CALLERS = {
    "aot_inductor",
    "compile",
    "export",
    "forward_mode",
    "functional_gradients",
    "memory",
    "opcheck",
    "sharding",
    "vmap",
}
# What takes the most of these, and depends on the schema: of two operators, with one result and with several.
_OF_SCHEMAS = {"aot_inductor", "memory"}
_TWO_SCHEMAS = {"depthwise_conv2d", "lltm"}
# What several dtypes are asked, of which those of an operator mostly say the same: `value` and `gradient` ask all.
_OF_DTYPES = {
    "accuracy",
    "fake",
    "fallbacks",
    "limits",
    "memory_bounds",
    "non_finite",
    "sizes",
    "stress",
    "strides",
    "value_regimes",
}


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out what repeats a proof, and shuffles the others if that is asked.

    Gradients are operators too. What callers need is asked of the operator itself, whose gradients call them; of
    themselves `make test-slow` asks it, as a quick check does.
    """
    for item in items:
        if (job := _job_of(item)) and _is_gradient(job) and job.property_name in _OF_CALLERS:
            item.callspec.params["job"] = replace(job, quick=True)
    items[:] = [item for item in items if item.get_closest_marker("slow") or not _repeats(_job_of(item))]
    others = _in_other_dtypes(item for item in items if not item.get_closest_marker("slow"))
    items[:] = [item for item in items if item not in others]
    yield
    if word := config.getoption("order"):
        # The tests of a file share what they build. A property of an operator is a test of its own, and most are such.
        together = {}
        for item in items:
            together.setdefault(item.nodeid if _job_of(item) else item.path, []).append(item)
        groups = list(together.values())
        Random(word).shuffle(groups)
        items[:] = [item for group in groups for item in group]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    minutes = item.config.getoption("minutes")
    if time.monotonic() - _BEGAN > 60 * minutes:
        pytest.skip(f"{_NO_TIME}, which were {minutes:g} minutes")


def pytest_terminal_summary(terminalreporter):
    left = sum(_NO_TIME in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if left:
        terminalreporter.write_line(f"{left:,} tests were not begun: {_NO_TIME}")


def _job_of(item):
    """The job of `graft check` that a test is about; None for others."""
    return getattr(item, "callspec", None) and item.callspec.params.get("job")


def _is_gradient(job):
    return job.name.endswith(("_grad", "_grads", "_backward"))


def _repeats(job):
    """Whether a job repeats what others ask; `make test-slow` asks every job of every operator.

    Of the dtypes of two bytes, which share their kernels' code, bfloat16 is asked.
    """
    # Of xdist, the process that hands out tests collects nothing, and need not import it.
    import torch

    if not job:
        return False
    if _is_gradient(job) and (job.property_name in _OF_CALLERS or job.dtype == torch.float16):
        return True
    return job.property_name in _OF_SCHEMAS and job.name not in _TWO_SCHEMAS


def _in_other_dtypes(items):
    """Tests of a property in all dtypes of an operator but one, which its name decides; a GPU is asked all."""
    alike = {}
    for item in items:
        if (job := _job_of(item)) and job.property_name in _OF_DTYPES and job.device == "cpu":
            alike.setdefault(f"{job.name} {job.property_name}", []).append(item)
    return {
        item
        for what, group in alike.items()
        for number, item in enumerate(group)
        if number != zlib.crc32(what.encode()) % len(group)
    }


@pytest.fixture(autouse=True)
def _fixed_seed():
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _forget_compiled():
    import torch

    yield
    if torch._dynamo.is_dynamo_supported():
        torch._dynamo.reset()


@pytest.fixture(autouse=True, scope="session")
def _two_threads():
    import torch

    # On more, PyTorch's own reductions would be measured against ours; the sums do not depend on it.
    torch.set_num_threads(min(2, os.cpu_count() or 1))


@pytest.fixture
def process_group():
    """A group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    # A model of DDP that outlives its group may wait for ever as it is freed.
    gc.collect()
    dist.destroy_process_group()


@pytest.fixture
def measured(monkeypatch):
    """Has kernels chosen by measured times, and forgets those choices."""
    import torch

    import torchgraft
    from torchgraft.kernels import measured_choice

    torchgraft.forget_choices()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with measured_choice.measuring(True):
        yield
    torchgraft.forget_choices()


@pytest.fixture
def busy_machine(monkeypatch):
    """Lets no benchmark wait for other programs to end: other tests may run beside it."""
    from torchgraft.benchmarking import load

    monkeypatch.setattr(load, "PATIENCE", 0.0)
    monkeypatch.setattr(load, "QUICK_PATIENCE", 0.0)


@pytest.fixture(scope="module")
def driver():
    """Chromium without a window. Its console is in `driver.get_log("browser")`."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if browser is None or chromedriver is None:
        pytest.skip("there is no Chromium with its chromedriver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    # In a container there is neither a sandbox nor much shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()
