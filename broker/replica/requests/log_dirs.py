"""AlterReplicaLogDirs: replicas are named by topic, and need not be here yet.

Owns the results for each replica. Does not move any: `placement.moves` does.
"""

from __future__ import annotations

from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    WantedDirectory,
)


def alter_log_dirs(placement: Placement, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """The result for each replica; those that move have not arrived yet when this is answered."""
    return AlterReplicaLogDirsResponse(errors=tuple(_ask(placement, each) for each in request.wanted))


def _ask(placement: Placement, wanted: WantedDirectory) -> ErrorCode:
    topics = None if placement.image is None else placement.image.topics
    topic = None if topics is None else topics.topic_named(wanted.topic)
    info = None if topics is None or topic is None else topics.partition(topic.topic_id, wanted.partition)
    settings = placement.settings_of(wanted.topic).log
    return placement.moves.ask(wanted.path, wanted.topic, wanted.partition, info, settings)
