"""The part of the table of keys that topics inherit: Kafka's names and defaults.

Owns these rows only; the whole table is `keys`. Does not have the keys of topics themselves
(`metadata.settings.topic_keys`), whose ranges and defaults these rows take. A topic's own setting, a broker's
and the cluster's dynamic default take precedence over a file.
"""

from __future__ import annotations

from metaquorum.metadata.settings.topic_keys import TOPIC_KEYS
from metaquorum.runtime.config.key import BROKER, CONTROLLER, MAX_INT, MAX_LONG, Key

_WEEK_HOURS = 168


def _number(
    name: str, topic_key: str, text: str, *, unit: str = "", default: int | None = None, minimum: int = 1
) -> Key:
    """A numeric key. Sizes and counts take default and minimum from the topic key; a time has `default`, None
    if a key of lower precedence has it."""
    known = TOPIC_KEYS[topic_key]
    if unit == "bytes" or not unit:
        default = int(known.default or 0)
        minimum = -1 if known.minimum is None else int(known.minimum)
    maximum = MAX_INT if known.maximum is None or known.maximum == MAX_INT else MAX_LONG
    if unit in {"minutes", "hours"}:
        maximum = MAX_INT
    return Key(name, "int", default, text, minimum=minimum, maximum=maximum, unit=unit, roles=(BROKER,))


def _bound(name: str, topic_key: str, direction: str) -> Key:
    text = f"How far a record's own timestamp may be {direction} the broker's clock."
    return _number(name, topic_key, text, unit="ms", default=MAX_LONG, minimum=0)


def _time(name: str, topic_key: str, text: str) -> Key:
    default = int(TOPIC_KEYS[topic_key].default or 0)
    return _number(name, topic_key, text, unit="ms", default=default, minimum=0)


TOPICS = (
    _number(
        "message.max.bytes",
        "max.message.bytes",
        "Maximum size of a batch that a producer may send.",
        unit="bytes",
    ),
    _number(
        "min.insync.replicas",
        "min.insync.replicas",
        "In-sync replicas needed for `acks=all`. With KIP-966 the cluster-wide default takes precedence.",
    ),
    Key(
        "unclean.leader.election.enable",
        "choice",
        "false",
        "Whether a replica that is not in sync may lead when no in-sync replica is alive; records that it "
        "lacks are lost. The same on all controllers.",
        roles=(CONTROLLER,),
        choices=("false", "true"),
    ),
    _number(
        "log.segment.bytes",
        "segment.bytes",
        "Maximum size of a segment.",
        unit="bytes",
    ),
    _number("log.roll.ms", "segment.ms", "Maximum age of a segment before a new one starts.", unit="ms"),
    _number(
        "log.roll.hours",
        "segment.ms",
        "The same in hours, if `log.roll.ms` is not set.",
        unit="hours",
        default=_WEEK_HOURS,
    ),
    _number(
        "log.retention.bytes",
        "retention.bytes",
        "Maximum size of a partition's log. -1: no limit.",
        unit="bytes",
    ),
    _number(
        "log.retention.ms",
        "retention.ms",
        "How long a segment is kept after its newest record. -1: forever.",
        unit="ms",
        minimum=-1,
    ),
    _number(
        "log.retention.minutes",
        "retention.ms",
        "The same in minutes, if `log.retention.ms` is not set.",
        unit="minutes",
        minimum=-1,
    ),
    _number(
        "log.retention.hours",
        "retention.ms",
        "The same in hours, if neither of these is set.",
        unit="hours",
        default=_WEEK_HOURS,
        minimum=-1,
    ),
    Key(
        "log.cleanup.policy",
        "choice",
        "delete",
        "`delete`: old segments are deleted; `compact`: the last record of each key is kept.",
        roles=(BROKER,),
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    ),
    Key(
        "compression.type",
        "choice",
        "producer",
        "Codec of stored batches; `producer`: as sent.",
        roles=(BROKER,),
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    Key(
        "log.cleaner.min.cleanable.ratio",
        "double",
        0.5,
        "Share of never compacted bytes above which a log is compacted.",
        most=1.0,
        roles=(BROKER,),
    ),
    _time(
        "log.cleaner.min.compaction.lag.ms",
        "min.compaction.lag.ms",
        "Records younger than this are not compacted.",
    ),
    _time(
        "log.cleaner.max.compaction.lag.ms",
        "max.compaction.lag.ms",
        "A log with dirty records older than this is compacted, regardless of their share.",
    ),
    _time(
        "log.cleaner.delete.retention.ms",
        "delete.retention.ms",
        "How long tombstones and transaction markers stay after compaction.",
    ),
    _number(
        "log.segment.delete.delay.ms",
        "file.delete.delay.ms",
        "How long the file of a deleted segment stays.",
        unit="ms",
        default=int(str(TOPIC_KEYS["file.delete.delay.ms"].default)),
        minimum=0,
    ),
    Key(
        "log.message.timestamp.type",
        "choice",
        "CreateTime",
        "`CreateTime`: records keep the producer's timestamp; `LogAppendTime`: they get the leader's.",
        roles=(BROKER,),
        choices=("CreateTime", "LogAppendTime"),
    ),
    _bound("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms", "behind"),
    _bound("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms", "ahead of"),
    _bound(
        "log.message.timestamp.difference.max.ms", "message.timestamp.difference.max.ms", "behind or ahead of"
    ),
)
