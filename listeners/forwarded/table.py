"""The APIs that the active controller answers: what the handlers of this folder declare."""

from __future__ import annotations

from metaquorum.listeners.forwarded import access, cluster, configs, nodes, topics
from metaquorum.listeners.forwarded.api import AskedBy, Forwarded
from metaquorum.wire.table import API_BY_NAME

ANSWERED: dict[str, Forwarded] = {
    each.name: each
    for module in (topics, configs, cluster, access, nodes)
    for each in vars(module).values()
    if isinstance(each, Forwarded)
}
"""All of them: on controllers' listeners."""
FORWARDED = {name: each for name, each in ANSWERED.items() if each.by is AskedBy.CLIENTS}
FORWARDED_BY_KEY = {API_BY_NAME[name].key: each for name, each in FORWARDED.items()}
