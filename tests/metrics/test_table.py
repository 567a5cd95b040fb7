# The table of metrics: what it names is there, and docs and the dashboard say the same.

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import diskq
import diskq.hub
from diskq.channels.stream.consumer import PartitionLag
from diskq.metrics import METRICS, Metric
from diskq.metrics.table import KINDS, PARTS

ROOT = Path(__file__).parent.parent.parent
NAMES = {metric.name for metric in METRICS}
UNITS = {"_bytes": "By", "_seconds": "s", "_offset": "1", "_tasks": "{task}"}


def class_named(name: str) -> type:
    if name == "PartitionLag":
        return PartitionLag
    found: type = getattr(diskq, name, None) or getattr(diskq.hub, name)
    return found


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_a_field_of_each_class_that_it_names(metric):
    assert metric.fields
    for name, field in metric.fields.items():
        assert field in {each.name for each in dataclasses.fields(class_named(name))}


def test_no_name_is_there_twice():
    assert len(NAMES) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_are_as_prometheus_wants_them(metric):
    assert re.fullmatch(r"diskq_[a-z_]+", metric.name)
    assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
    for ending, unit in UNITS.items():
        assert metric.name.endswith(ending) == (metric.unit == unit) or metric.unit == "1"
    assert metric.help.endswith(".")


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_can_be_watched_has_statistics(name):
    assert callable(getattr(class_named(name), "statistics", None))


def test_parts_are_of_fields():
    for name, (field, _) in PARTS.items():
        assert field in {each.name for each in dataclasses.fields(class_named(name))}


# --- the page, and the dashboard ------------------------------------------------------------------


def row(metric: Metric) -> str:
    name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
    unit = metric.unit.replace("{", "").replace("}", "")
    kinds = sorted({re.sub(r"Statistics$", "", each) for each in metric.fields})
    return f"| `{name}` | {metric.kind} | {unit} | {metric.help} | {', '.join(kinds)} |"


def test_the_page_lists_the_table():
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `diskq_.*$", page, re.MULTILINE)
    assert rows == [row(metric) for metric in METRICS]


def test_the_dashboard_asks_for_what_there_is():
    told = {f"{metric.name}_total" if metric.kind == "counter" else metric.name for metric in METRICS}
    told |= {f"{metric.name}_bucket" for metric in METRICS if metric.kind == "histogram"}
    dashboard = json.loads((ROOT / "examples/dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    wanted = {name for expression in asked for name in re.findall(r"diskq_\w+", expression)}
    assert len(wanted) > 10
    assert wanted <= told
