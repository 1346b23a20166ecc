"""The report of a check as JUnit XML, which services for continuous integration show as tests."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from torchgraft.checking.report.check_report import CheckReport, describe
from torchgraft.checking.result import Result
from torchgraft.version import __version__

# Characters that XML 1.0 cannot hold, not even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: CheckReport) -> bytes:
    """Returns a report as JUnit XML: a test suite an operator and device, a test case a property and dtype."""
    suites: dict[tuple[str, str], list[Result]] = {}
    for result in report.results:
        suites.setdefault((result.operator, result.device), []).append(result)
    root = ElementTree.Element("testsuites", {"name": "graft check", **_counts(report.results)})
    for (operator, device), results in suites.items():
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": _text(f"{operator} on {device}"), **_counts(results)}
        )
        environment = report.environments.get(device)
        if environment is not None:
            suite.set("timestamp", environment.date)
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in {"seed": report.seed, "quick": report.quick, "torchgraft": __version__}.items():
            ElementTree.SubElement(properties, "property", name=name, value=str(value))
        for result in results:
            suite.append(_case(result))
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _counts(results: Sequence[Result]) -> dict[str, str]:
    count = {status: sum(result.status == status for result in results) for status in ("fail", "not applicable")}
    return {
        "tests": str(len(results)),
        "failures": str(count["fail"]),
        "errors": "0",
        "skipped": str(count["not applicable"]),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }


def _case(result: Result) -> ElementTree.Element:
    kernel = f", kernel {result.kernel}" if result.kernel else ""
    case = ElementTree.Element(
        "testcase",
        classname=_text(f"{result.operator}.{result.device}".replace("::", ".")),
        name=_text(f"{result.property}[{result.dtype}{kernel}]"),
        time=f"{result.seconds:.3f}",
    )
    if result.failure is not None:
        if result.failure.file:
            case.set("file", _text(result.failure.file))
            case.set("line", str(result.failure.line))
        failure = ElementTree.SubElement(
            case, "failure", message=_text(result.failure.message), type=result.failure.kind or result.property
        )
        failure.text = _text(describe(result))
    elif result.status == "not applicable":
        ElementTree.SubElement(case, "skipped", message=_text(result.reason))
    return case


def _text(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
