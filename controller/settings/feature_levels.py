"""Decisions on feature levels (KIP-584, KIP-778): which nodes must support a level before it is finalized.

Follows Kafka 3.7: each feature of a request is decided on its own, and no downgrade may lose metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metaquorum.controller.features import LEVEL_CONTROLLER_REGISTRATION
from metaquorum.controller.partitions.partitions import eligible_anywhere
from metaquorum.controller.partitions.rules import NOTHING_IN_FILES, MinIsrInFiles, safety_records
from metaquorum.controller.result import ControllerResult, repeated
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import (
    ELR_VERSION,
    KNOWN_FEATURES,
    KRAFT_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_NAMES,
    MIN_FINALIZED_METADATA_VERSION,
    loses_metadata,
    metadata_version_name,
    needed_metadata_version,
)
from metaquorum.metadata.image import FeatureRange, MetadataImage
from metaquorum.metadata.records.types import FeatureLevelRecord, Record
from metaquorum.metadata.requests.settings import (
    FeatureUpdate,
    LevelChange,
    SettingResult,
    SettingsResponse,
    UpdateFeaturesRequest,
)

_MIGRATING = frozenset({1, 2})
"""States of a ZooKeeper migration during which metadata.version stays (KIP-866): preparation and
migration."""


def decide_update_features(
    image: MetadataImage,
    request: UpdateFeaturesRequest,
    *,
    node_id: int,
    voters: frozenset[int],
    min_isr: MinIsrInFiles = NOTHING_IN_FILES,
) -> ControllerResult:
    """`node_id` is this controller's; `voters` are all controllers that must support the level."""
    records: list[Record] = []
    results: list[SettingResult] = []
    twice = repeated(update.name for update in request.updates)
    wanted = {update.name: update.level for update in request.updates}
    for update in request.updates:
        problem = (
            "it is named twice in one request: name it once"
            if update.name in twice
            else _problem(image, update, node_id, voters)
            or _dependency_problem(image, update, wanted)
            or _default_problem(image, update, min_isr)
        )
        if problem is not None:
            shown = level_title(update.name, update.level)
            results.append(
                SettingResult(
                    subject=update.name,
                    error=ErrorCode.INVALID_UPDATE_VERSION,
                    message=f"{update.name} cannot become {shown}: {problem}",
                )
            )
            continue
        results.append(SettingResult(subject=update.name))
        if update.level != current_level(image, update.name):
            if _begins_eligible(image, update):
                records += safety_records(image, min_isr.controller)
            records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
    response = SettingsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else tuple(records))


def current_level(image: MetadataImage, name: str) -> int:
    """The level in force; a log without a metadata.version has the first one."""
    return image.features.metadata_version if name == METADATA_VERSION else image.features.level(name)


def level_title(name: str, level: int) -> str:
    """A metadata.version by its name, other levels by their number."""
    return metadata_version_name(level) if name == METADATA_VERSION else str(level)


def _problem(image: MetadataImage, update: FeatureUpdate, node_id: int, voters: frozenset[int]) -> str | None:
    before = current_level(image, update.name)
    if update.level < 0:
        return "a level is at least 0"
    if update.name == KRAFT_VERSION:
        return "the quorum itself writes it: change it in a separate request"
    unsupported = unsupported_by(image, update.name, update.level, node_id, voters)
    if unsupported is not None:
        return unsupported
    if update.level < before and update.change is LevelChange.UPGRADE:
        return f"that is below {level_title(update.name, before)}: request a downgrade if you mean it"
    if update.level > before and update.change is not LevelChange.UPGRADE:
        return f"that is above {level_title(update.name, before)}: request an upgrade"
    if update.name == METADATA_VERSION:
        return _metadata_version_problem(image, update, before)
    return None


def _dependency_problem(image: MetadataImage, update: FeatureUpdate, wanted: Mapping[str, int]) -> str | None:
    """Why the levels of this feature and of metadata.version after the whole request do not go together
    (KIP-1022)."""
    if update.name == METADATA_VERSION:
        for name, level in sorted({**image.features.finalized, **wanted}.items()):
            needed = needed_metadata_version(name, level)
            if update.level < needed:
                return f"{name} {level} needs {metadata_version_name(needed)}: downgrade {name} first"
        return None
    needed = needed_metadata_version(update.name, update.level)
    if wanted.get(METADATA_VERSION, image.features.metadata_version) < needed:
        return f"it needs metadata.version {metadata_version_name(needed)}: upgrade that first"
    if (
        update.name == ELR_VERSION
        and update.level > image.features.level(ELR_VERSION) == 0
        and eligible_anywhere(image)
    ):
        return "old eligible leader replicas are still being removed: retry in a moment"
    return None


def _begins_eligible(image: MetadataImage, update: FeatureUpdate) -> bool:
    return update.name == ELR_VERSION and update.level > image.features.level(ELR_VERSION)


def _default_problem(image: MetadataImage, update: FeatureUpdate, min_isr: MinIsrInFiles) -> str | None:
    """Why the default that the feature writes would let brokers acknowledge with fewer replicas."""
    return min_isr.problem(image) if _begins_eligible(image, update) else None


def _metadata_version_problem(image: MetadataImage, update: FeatureUpdate, before: int) -> str | None:
    if update.level not in METADATA_VERSION_NAMES:
        return "this release does not support this level: use a newer release"
    if image.features.zk_migration_state in _MIGRATING:
        return "a migration from ZooKeeper is in progress: wait until it completes"
    if update.level < MIN_FINALIZED_METADATA_VERSION:
        first = metadata_version_name(MIN_FINALIZED_METADATA_VERSION)
        return f"the log cannot express levels below {first}"
    if update.level < before and loses_metadata(before, update.level):
        if update.change is LevelChange.UNSAFE_DOWNGRADE:
            return "an unsafe downgrade, which would lose metadata, is not supported: stay at this level"
        return "the downgrade could lose metadata that only the higher level supports: stay at this level"
    return None


def unsupported_by(
    image: MetadataImage, name: str, level: int, node_id: int, voters: frozenset[int]
) -> str | None:
    """Which node does not support a level of a feature; None if every registered one does."""
    own = [FeatureRange(feature.name, feature.min_level, feature.max_level) for feature in KNOWN_FEATURES]
    problem = _range_problem(f"this controller ({node_id})", own, name, level)
    if problem is not None:
        return problem
    for broker_id, broker in image.brokers.items():
        problem = _range_problem(f"broker {broker_id}", broker.features, name, level)
        if problem is not None:
            gone = f"; it is fenced: if it is gone for good, metaquorum brokers unregister {broker_id}"
            return problem + gone if broker.fenced else problem
    if image.features.metadata_version < LEVEL_CONTROLLER_REGISTRATION:
        return None  # controllers do not register at such a level: their support is unknown (KIP-919)
    for controller_id in sorted(voters - {node_id}):
        controller = image.controllers.get(controller_id)
        if controller is None:
            return (
                f"controller {controller_id} has not registered and may not support it: start it, then retry"
            )
        problem = _range_problem(f"controller {controller_id}", controller.features, name, level)
        if problem is not None:
            return problem
    return None


def _range_problem(who: str, ranges: Iterable[FeatureRange], name: str, level: int) -> str | None:
    known = next((levels for levels in ranges if levels.name == name), None)
    low, high = (0, 0) if known is None else (known.min_supported_version, known.max_supported_version)
    if low <= level <= high:
        return None
    if high == 0:
        return f"{who} does not support {name}: run a release that does"
    low_title, high_title = level_title(name, low), level_title(name, high)
    return f"{who} supports {low_title} to {high_title}: run a release that supports this level"
