"""Imported by Python when it starts: makes the process one of another system, or one that sleeps."""

import os

if os.environ.get("METAQUORUM_TEST_SYSTEM"):
    from tests.systems.hidden import hide

    hide(os.environ["METAQUORUM_TEST_SYSTEM"])
if os.environ.get("METAQUORUM_TEST_SLEEPS"):
    from tests.systems.sleeping import sleep_by_signal

    sleep_by_signal()
