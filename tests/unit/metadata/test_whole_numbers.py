"""Numbers in text that others wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.settings.configs import _in_ms
from metaquorum.metadata.settings.keys import ConfigValueError, Key, Kind, whole_number
from metaquorum.metadata.text.addresses import address_text, listener_text


@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 10**6))
def test_a_number_up_to_the_most_is_read(number: int, zeros: int, most: int) -> None:
    assert whole_number("0" * zeros + str(number), most) == (number if number <= most else None)


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "+1", "-1", "1.0", "1_0", "\u0661", "\u00b2", "x", "9" * 5000]
)
def test_what_is_no_number_is_none(text: str) -> None:
    assert whole_number(text, 2**63) is None


def test_as_many_zeros_as_one_likes() -> None:
    assert whole_number("0" * 5000, 9) == 0
    assert whole_number("0" * 5000 + "7", 9) == 7


@given(st.sampled_from(["", "+", "-", "+-", "--", " "]), st.integers(0, 2**17), st.integers(0, 2))
def test_a_setting_takes_the_numbers_that_java_takes(sign: str, size: int, zeros: int) -> None:
    key = Key("k", Kind.SHORT)
    text = sign + "0" * zeros + str(size)
    value = -size if sign == "-" else size
    if sign in ("+-", "--") or not -(2**15) <= value < 2**15:
        with pytest.raises(ConfigValueError, match="write a whole number from -32768 to 32767"):
            key.parse(text)
    else:
        assert key.parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "ms"),
    [
        ("log.retention.minutes", " 7 ", "420000"),
        ("log.retention.hours", "-1", "-1"),
        ("log.retention.hours", "0", "0"),
        ("log.retention.ms", "7", "7"),
        ("log.retention.hours", "x", "x"),
        ("log.retention.hours", "9" * 5000, "9" * 5000),
    ],
)
def test_a_time_in_a_longer_unit_is_told_in_ms(name: str, text: str, ms: str) -> None:
    assert _in_ms(name, text) == ms


# Addresses as text: an IPv6 host is in brackets, or its last group reads as a port.


@pytest.mark.parametrize(
    ("host", "text"),
    [("node-1", "node-1:9093"), ("10.0.0.1", "10.0.0.1:9093"), ("::1", "[::1]:9093"), ("", ":9093")],
)
def test_an_address(host: str, text: str) -> None:
    assert address_text(host, 9093) == text
    assert listener_text("CONTROLLER", host, 9093) == f"CONTROLLER://{text}"
