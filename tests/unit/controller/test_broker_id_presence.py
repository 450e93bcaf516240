"""What a new leader knows of a broker id before anybody has sent a heartbeat."""

from __future__ import annotations

from metaquorum.controller.active.state import BrokerIdPresence
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.metadata.image import MetadataImage

SESSION_MS = 9_000


def test_s0_6_the_session_that_a_new_leader_gives_a_broker_is_no_sign_of_life() -> None:
    """A newcomer may ask before the new leader has opened its sessions."""
    sessions = Sessions(session_timeout_ms=SESSION_MS, lag_timeout_ms=SESSION_MS)
    image = MetadataImage()
    presence = BrokerIdPresence(sessions, image, now_ms=100)

    def heard(arrived_ms: int) -> bool:
        found = presence.at(image, frozenset(), b"start", arrived_ms).heard_since_asked(1001)
        presence.note_asked(b"start", arrived_ms)
        return found

    assert not heard(110)
    sessions.put(1001, sessions.unheard(5, 120))
    assert not heard(400)
    sessions.put(1001, sessions.touched(1001, 5, 500))
    assert heard(700)
