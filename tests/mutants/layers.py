"""Which files are mutated together, and which tests judge them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SEEDS = "tests/mutants/seeds.py"
"""Short runs of the simulator, as tests."""
FIGURES = "tests/unit/test_figures.py"
DEFAULTS = "tests/unit/test_defaults.py"
NODE = ("clients", "config", "listeners", "network", "node", "observability", "rpc")
"""What a node is made of, around its core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """`files` are patterns below the repository, `without` is left out; `tests` go to pytest."""

    name: str
    target: int
    files: tuple[str, ...]
    without: tuple[str, ...] = ()
    tests: tuple[str, ...]

    def sources(self, root: Path) -> list[str]:
        """Paths of the files, sorted. Raises ValueError if a pattern finds none."""
        found: set[str] = set()
        for pattern in self.files:
            paths = [str(path.relative_to(root)) for path in root.glob(pattern)]
            if not paths:
                raise ValueError(f"{self.name}: no file is named {pattern}")
            found.update(path for path in paths if not path.startswith(self.without))
        return sorted(found)


def _tests_in(folder: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every test file below a folder except these."""
    root = Path(__file__).parents[2]
    found = [str(path.relative_to(root)) for path in sorted((root / folder).rglob("test_*.py"))]
    return tuple(path for path in found if path.rpartition("/test_")[2].removesuffix(".py") not in without)


_STORAGE_TESTS = (
    FIGURES,
    "tests/scripts",
    "tests/unit/storage",
    "tests/conformance/test_disk.py",
    "tests/properties/test_storage_crash.py",
    "tests/properties/test_batch_runs.py",
    "tests/properties/test_cleaner.py",
    "tests/properties/test_log_archives.py",
    "tests/properties/test_directory_store_crash.py",
    *(
        f"tests/unit/broker/test_directory_{name}.py"
        for name in ("cleaner", "compacted", "damaged", "log_starts", "store")
    ),
    "tests/unit/broker/test_framings.py",
    "tests/unit/broker/test_replica_transactions.py",
    "tests/unit/broker/test_replica_validation.py",
    "tests/unit/broker/test_replica_produce.py",
    "tests/unit/controller/test_record_writers.py",
    "tests/unit/server/test_directory_ids.py",
)
_STATE_TESTS = (
    "tests/unit/wire",
    *(
        f"tests/unit/metadata/test_{name}.py"
        for name in (
            *(
                "codec_batches",
                "codec_errors",
                "codec_golden",
                "codec_schema",
                "columns_agree",
                "columns_decode",
                "windows_read",
            ),
            *(
                "image_parts",
                "image_shortcuts",
                "parts_of_the_state",
                "passing_over",
                "replay_edges",
                "replay_limits",
                "replay_meanings",
                "replay_recorded_logs",
                "replay_time",
                "replica_counts",
            ),
            *("snapshot_bytes", "snapshot_files"),
        )
    ),
    "tests/properties/test_every_field_survives.py",
    "tests/properties/test_replay_laws.py",
    "tests/properties/test_partition_changes.py",
    "tests/properties/test_codec_roundtrip.py",
    "tests/properties/test_batch_runs.py",
)

_SPARK = (
    *("pipeline/api.py", "pipeline/session.py", "pipeline/source.py", "pipeline/submit.py"),
    *("pipeline/ingest/call.py", "pipeline/ingest/spark.py"),
)

LAYERS: dict[str, Layer] = {
    layer.name: layer
    for layer in (
        Layer(
            name="storage",
            target=95,
            files=("storage/**/*.py",),
            without=(
                "storage/disk/posix.py",
                "storage/disk/posix.py",
            ),  # shell
            tests=_STORAGE_TESTS,
        ),
        Layer(
            name="raft",
            target=95,
            files=("raft/**/*.py",),
            tests=(
                "tests/raft",
                "tests/unit/raft",
                "tests/unit/node/test_replica_store.py",
                "tests/properties/test_raft_schedules.py",
                "tests/properties/test_blocking_driver.py",
                "tests/properties/test_library_voters.py",
                "tests/properties/test_voter_histories.py",
                "tests/unit/controller/test_node_log.py",
                "tests/unit/controller/test_node_leadership.py",
                SEEDS,
            ),
        ),
        Layer(
            name="state",
            target=95,
            files=(
                *(
                    "metadata/replay.py",
                    "metadata/meanings.py",
                    "metadata/delta.py",
                    "metadata/snapshot*.py",
                ),
                *("metadata/image/*.py", "metadata/columnar/*.py"),
                *(
                    "metadata/records/codec.py",
                    "wire/generator.py",
                    "wire/primitives.py",
                    "metadata/records/batches.py",
                ),
            ),
            tests=_STATE_TESTS,
        ),
        Layer(
            name="controller",
            target=90,
            files=(
                "controller/**/*.py",
                "metadata/requests/common.py",
                "metadata/requests/partitions.py",
            ),
            without=("controller/server",),
            tests=(
                "tests/scripts",
                "tests/unit/controller",
                "tests/properties/test_column_decisions.py",
                "tests/properties/test_controller_brokers.py",
                "tests/properties/test_broker_ids.py",
                "tests/properties/test_plans.py",
                "tests/properties/test_scans.py",
                "tests/properties/test_partition_changes.py",
                "tests/properties/test_causes_of_changes.py",
                "tests/properties/test_voter_plans.py",
                "tests/unit/kafka/test_mutation_quota.py",
                SEEDS,
            ),
        ),
        Layer(
            name="broker",
            target=90,
            files=("broker/**/*.py", "metadata/node_configs.py", "metadata/requests/rates.py"),
            without=("broker/server",),
            tests=(
                FIGURES,
                "tests/scripts",
                "tests/unit/broker",
                "tests/properties/test_broker_session.py",
                "tests/properties/test_placement_laws.py",
                "tests/properties/test_replica_partitions.py",
                "tests/properties/test_directory_store_crash.py",
                "tests/properties/test_group_laws.py",
                "tests/properties/test_consumer_group_laws.py",
                "tests/unit/kafka/test_log_dir_answers.py",
                "tests/unit/kafka/test_transaction_answers.py",
                "tests/unit/kafka/test_marker_sender.py",
                "tests/unit/server/test_data_directory.py",
            ),
        ),
        Layer(
            name="inspect",
            target=90,
            files=("metadata/inspect/**/*.py",),
            tests=(
                FIGURES,
                DEFAULTS,
                "tests/unit/metadata",
                "tests/stories",
                "tests/sums",
                "tests/properties/test_time_travel.py",
                "tests/properties/test_transactions_told.py",
                "tests/properties/test_trimmed_logs.py",
                "tests/properties/test_predicate_sandbox.py",
                "tests/unit/server/test_callers_in_the_log.py",
                *(
                    f"tests/unit/cli/test_log_{name}.py"
                    for name in (
                        *("answers", "dump", "nodes", "places", "repair_commands", "secrets", "summary"),
                        *("time", "tools", "trimmed"),
                    )
                ),
                "tests/unit/cli/test_inspect.py",
                "tests/unit/cli/test_terminal.py",
            ),
        ),
        Layer(
            name="wire",
            target=95,
            files=("wire/**/*.py",),
            without=("wire/generator.py", "wire/primitives.py"),  # in the state's layer
            tests=(
                "tests/unit/wire",
                "tests/unit/broker/test_group_parts.py",
                "tests/unit/kafka/test_admin_captures.py",
                "tests/unit/kafka/test_connection.py",
                "tests/unit/metadata/test_codec_errors.py",
                "tests/properties/test_wire_codec.py",
                "tests/properties/test_kafka_stream.py",
                "tests/properties/test_migration_laws.py",
            ),
        ),
        Layer(
            name="node",
            target=90,
            files=tuple(f"{folder}/**/*.py" for folder in NODE),
            without=("node/process.py", "node/node_process.py"),  # processes
            tests=(
                FIGURES,
                *(f"tests/unit/{folder}" for folder in NODE if folder != "listeners"),
                "tests/unit/kafka",
                "tests/unit/metrics",
                "tests/unit/server",
                "tests/unit/cli/test_produce_consume.py",
                "tests/conformance/test_transport.py",
                "tests/properties/test_blocking_driver.py",
                "tests/properties/test_kafka_stream.py",
            ),
        ),
        Layer(
            name="server",
            target=90,
            files=("broker/server/**/*.py", "controller/server/*.py", "combined/*.py"),
            without=("combined/process.py",),
            tests=(
                FIGURES,
                "tests/unit/server",
                "tests/unit/kafka",
                "tests/unit/combined",
                "tests/unit/metrics",
                "tests/unit/broker/test_group_captures.py",
            ),
        ),
        Layer(
            name="cli",
            target=90,
            files=("cli/**/*.py",),
            without=("cli/local",),  # starts and ends processes
            tests=(
                DEFAULTS,
                *_tests_in("tests/unit/cli", without=("demo_end", "forks", "left_behind", "local", "start")),
                "tests/unit/server",
                "tests/stories",
                "tests/unit/metadata/test_partition_files.py",
                "tests/unit/metadata/test_partition_files.py",
                "tests/unit/pipeline/audit",
                "tests/unit/pipeline/report/test_report.py",
                "tests/properties/test_voter_plans.py",
            ),
        ),
        Layer(
            name="pipeline",
            target=90,
            files=("pipeline/**/*.py",),
            without=_SPARK,
            tests=(
                DEFAULTS,
                *_tests_in("tests/unit/pipeline", without=("page_layout", "s3")),
                "tests/properties/test_windows_of_brokers.py",
            ),
        ),
        Layer(
            name="console",
            target=90,
            files=("console/**/*.py",),
            tests=("tests/unit/console",),
        ),
        Layer(
            name="testing",
            target=90,
            files=("testing/**/*.py",),
            without=("testing/owned_node.py", "testing/plugin.py"),  # a process; imported before any test
            tests=(
                "tests/unit/testing",
                "tests/unit/storage/test_faulty_disk.py",
                "tests/unit/storage/test_names_in_memory.py",
                "tests/unit/storage/test_what_returned_is_durable.py",
                "tests/conformance/test_disk.py",
                "tests/properties/test_faults_that_heal.py",
                "tests/properties/test_nested_faults.py",
            ),
        ),
    )
}
