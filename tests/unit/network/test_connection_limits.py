"""Who gets a place among a process's connections, and who makes room for it."""

from __future__ import annotations

import random
from collections import Counter

from metaquorum.network.limits import BROKERS_MORE, ConnectionLimits, ConnectionSlot, CreationRate


def entered(limits: ConnectionLimits, listener: str = "IN", address: str = "a") -> ConnectionSlot:
    place = limits.admit(listener, address)
    assert isinstance(place, ConnectionSlot), place
    return place


def test_of_what_is_new_the_oldest_of_the_fullest_address_makes_room() -> None:
    limits = ConnectionLimits(new_max=3)
    ended: list[str] = []
    places = [entered(limits, address=address) for address in ("b", "a", "a")]
    for name, place in zip(("b", "a1", "a2"), places, strict=True):
        place.end = lambda reason, name=name: ended.append(name)
    entered(limits, address="c")
    assert ended == ["a1"]
    places[2].known()
    entered(limits, address="c")  # there is room again: one of a is known
    assert ended == ["a1"]
    entered(limits, address="d")
    assert ended == ["a1"]  # c has two then, and its oldest left


def test_a_known_connection_makes_no_room_and_what_is_full_of_them_refuses() -> None:
    limits = ConnectionLimits(files_max=2, new_max=9)
    first, second = entered(limits), entered(limits)
    first.known()
    second.known()
    assert limits.admit("IN", "b") == (
        "there are 2 connections, the most that the limit of open files leaves (ulimit -n)"
    )
    second.leave()
    second.leave()
    third = entered(limits)
    ended: list[str] = []
    third.end = ended.append
    entered(limits, address="b")
    assert len(ended) == 1 and "max.connections.unauthenticated" in ended[0]


def test_those_that_say_nothing_do_not_fill_what_is_configured() -> None:
    limits = ConnectionLimits(max_connections=2)
    silent = [entered(limits) for _ in range(2)]
    ended: list[str] = []
    silent[0].end = ended.append
    entered(limits, address="b").known()
    assert len(ended) == 1
    entered(limits, address="b").known()
    assert "max.connections allows" in str(limits.admit("IN", "c"))


def test_an_address_has_its_number_and_an_override_its_own() -> None:
    limits = ConnectionLimits(max_per_ip=1, overrides={"b": 2, "c": 0})
    entered(limits, address="a")
    assert "max.connections.per.ip allows" in str(limits.admit("IN", "a"))
    entered(limits, address="b")
    entered(limits, address="b")
    assert "max.connections.per.ip.overrides allows" in str(limits.admit("IN", "b"))
    assert "there are 0 connections from c" in str(limits.admit("IN", "c"))


def test_brokers_get_in_above_the_limit_and_not_without_end() -> None:
    limits = ConnectionLimits(files_max=3, protected="BROKERS")
    for _ in range(3):
        entered(limits, "IN").known()
    for _ in range(BROKERS_MORE):
        entered(limits, "BROKERS").known()
    assert limits.is_exceeded
    assert isinstance(limits.admit("BROKERS", "a"), str)


def test_whatever_comes_and_goes_the_bounds_hold() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        most, new_most, per_ip, out = (rng.randint(1, at) for at in (12, 6, 8, 6))
        limits = ConnectionLimits(
            files_max=most, new_max=new_most, max_per_ip=per_ip, by_listener={"OUT": out}
        )
        here: dict[ConnectionSlot, bool] = {}
        for _ in range(150):
            step = rng.random()
            if step < 0.6:
                address, listener = rng.choice("abc"), rng.choice(("IN", "OUT"))
                place = limits.admit(listener, address)
                if isinstance(place, ConnectionSlot):
                    here[place] = False
                    place.end = lambda _, place=place, here=here: here.pop(place) and None
                else:
                    at_listener = Counter(each.listener for each in here)
                    assert (
                        len(here) >= most
                        or Counter(each.address for each in here)[address] >= per_ip
                        or (listener == "OUT" and at_listener["OUT"] >= out)
                    )
            elif here:
                place = rng.choice(list(here))
                if step < 0.8:
                    here[place] = True
                    place.known()
                else:
                    del here[place]
                    for _ in range(rng.randint(1, 2)):  # a second call does nothing
                        place.leave()
            assert len(here) <= most
            assert sum(not known for known in here.values()) <= new_most
            assert max(Counter(each.address for each in here).values(), default=0) <= per_ip
            assert Counter(each.listener for each in here)["OUT"] <= out
            assert not limits.is_exceeded


def test_a_rate_lets_a_second_of_it_in_at_once_and_then_one_after_the_other() -> None:
    rate = CreationRate(4)

    def arrivals(now_s: float) -> int:
        """How many are accepted at this time."""
        count = 0
        while rate.wait_s(now_s) == 0:
            rate.accepted(now_s)
            count += 1
        return count

    assert arrivals(100.0) == 5
    assert 0 < rate.wait_s(100.0) <= 0.25
    assert arrivals(100.25) == 1
    assert arrivals(200.0) == 5
