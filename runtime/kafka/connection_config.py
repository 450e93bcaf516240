"""The settings that the connections of one listener share.

Owns these values and checks none. Does not read the configuration: `listener` fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metaquorum.runtime.driver.step_end import StepEnd
from metaquorum.runtime.kafka.auth.rules import ListenerRules
from metaquorum.runtime.kafka.bounds.memory import RequestMemory
from metaquorum.runtime.kafka.bounds.unsent import Unsent
from metaquorum.runtime.kafka.quotas import Quotas
from metaquorum.runtime.sockets.framing import SCRATCH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Settings of a listener's connections. A connection is closed after `max_idle_s` seconds without a
    request, and after `login_timeout_s` without a login. `rules` None: clients do not authenticate; `quotas`
    None: there are none."""

    listener: str
    request_max_bytes: int
    max_idle_s: float
    rules: ListenerRules | None = None
    quotas: Quotas | None = None
    login_max_bytes: int = 524_288
    login_timeout_s: float = 30
    failed_login_delay_s: float = 0.1
    memory: RequestMemory = field(default_factory=RequestMemory, repr=False, compare=False)
    unsent: Unsent = field(default_factory=Unsent, repr=False, compare=False)
    scratch: bytearray = field(default_factory=lambda: bytearray(SCRATCH_BYTES), repr=False, compare=False)
    """The buffer that receives the small frames of all connections (`FrameBuffer`)."""
    step_end: StepEnd = field(default_factory=StepEnd, repr=False, compare=False)
