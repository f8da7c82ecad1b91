"""The tables of times are what the records say; what a record carries, and what speaks against its times."""

import pytest

import speed_tables as tables
from numbarnn.bench import record


# -------------------------------------------------------------------------------------------------------------- pages
def read(page):
    return (tables.ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", tables.PAGES)
def test_pages_are_what_the_records_say(page):
    text = read(page)
    assert tables.rendered(page, text) == text, "run: python tests/support/speed_tables.py"


# ------------------------------------------------------------------------------------------------- what a table says
def test_a_busy_machine_counts_by_the_hosts_clock():
    """By the GPU's only where nobody looked whether the host was ahead."""
    row = {"seconds": {"a": [1.0] * 3}, "device_seconds": {"a": [1.0] * 3}, "host_behind": {"a": 0}}
    assert record.doubts(row, ["a"], "busy") == []
    assert record.doubts(row | {"host_behind": None}, ["a"], "busy") == ["busy"]
    assert record.doubts(row | {"device_seconds": {}}, ["a"], "busy") == ["busy"]


def test_load_is_what_others_did():
    assert record.machine_doubt({"cores_busy_elsewhere": 0.1}, 2) is None
    assert record.machine_doubt({"cores_busy_elsewhere": None}, 2) is None
    assert "others kept 1.0 of 2 cores busy" in record.machine_doubt({"cores_busy_elsewhere": 1.0}, 2)
    load = record.Load()
    sum(range(3_000_000))  # work of one's own is no load
    assert load.as_record().keys() == {"cores_busy_elsewhere"}
