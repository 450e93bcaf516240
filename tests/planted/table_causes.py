"""Mistakes in the causes that the metadata log records."""

from __future__ import annotations

from tests.planted.bug import Bug

RECORD = "tests/unit/metadata/test_batch_cause.py"
CAUSES = "tests/unit/controller/test_causes.py"
DOORS = "tests/unit/server/test_callers_in_the_log.py"
DECISIONS = "tests/unit/config/test_authorizer_log.py"
_ADR = "docs/adr/0015"

CAUSE_BUGS = (
    Bug(
        name="why-of-a-part-knows-no-broker-records-before-it",
        breaks="why from parts of a log names the causes that are in other parts",
        source="docs/console.md",
        file="console/views.py",
        old="brokers = self.moments.brokers",
        new="brokers = self.moments.brokers[:0]",
        caught_by=("tests/unit/console/test_parts_of_the_log.py",),
    ),
    Bug(
        name="cause-lost-while-a-request-waited",
        breaks="a request that waited keeps its cause",
        source=_ADR,
        file="controller/active/outcome.py",
        old="if arrived.cause is None:",
        new="if arrived.cause is None or isinstance(turn, Resumed):",
        caught_by=(CAUSES,),
    ),
    Bug(
        name="slices-keep-the-cause-of-an-earlier-request",
        breaks="work that is extended has the cause of the request that extended it",
        source=_ADR,
        file="controller/active/outcome.py",
        old="return (before.unregister, before.unclean) != (work.unregister, work.unclean)",
        new="return False",
        caught_by=(CAUSES,),
    ),
    Bug(
        name="slices-have-no-cause",
        breaks="work in slices carries the cause that began it",
        source=_ADR,
        file="controller/active/state.py",
        old="self.work_causes[key] = outcome.cause",
        new="pass",
        caught_by=(CAUSES,),
    ),
    Bug(
        name="rule-missing",
        breaks="what the controller does by itself has a rule",
        source=_ADR,
        file="controller/active/outcome.py",
        old='    Step.EXPIRE_SESSIONS: "session-expired",\n',
        new="\n",
        caught_by=(CAUSES,),
    ),
    Bug(
        name="cause-behind-its-records",
        breaks="the cause is the first record of its batch",
        source=_ADR,
        file="controller/active/outcome.py",
        old="in_pieces((cause_record(cause), *_pieces(batch.records)))",
        new="in_pieces((*_pieces(batch.records), cause_record(cause)))",
        caught_by=(CAUSES,),
    ),
    Bug(
        name="cause-for-readers-that-do-not-know-it",
        breaks="below metadata.version 3.3-IV1 there are no NoOpRecords",
        source="KIP-835",
        file="controller/active/outcome.py",
        old="return level >= LEVEL_NO_OP",
        new="return True",
        caught_by=(CAUSES,),
    ),
    Bug(
        name="names-of-any-length-are-written",
        breaks="a text of a cause has at most 255 bytes",
        source=_ADR,
        file="metadata/records/batch_cause.py",
        old="return replace(cause, **cut) if cut else cause",
        new="return cause",
        caught_by=(RECORD, CAUSES),
    ),
    Bug(
        name="control-characters-reach-the-terminal",
        breaks="what a client sends is printed as printable characters",
        source=_ADR,
        file="metaquorum/lines.py",
        old="if text.isprintable():",
        new="if text:",
        caught_by=(RECORD, DECISIONS),
    ),
    Bug(
        name="forwarded-clients-have-no-name",
        breaks="the log names the client that sent the request to the broker",
        source=_ADR,
        file="controller/server/forwarding_service.py",
        old="client_id=header.client_id,",
        new="client_id=None,",
        caught_by=(DOORS,),
    ),
    Bug(
        name="certificates-are-not-in-the-log",
        breaks="the log names the principal of the certificate",
        source=_ADR,
        file="rpc/rights.py",
        old="principal=self.principal(context) or ANONYMOUS",
        new="principal=ANONYMOUS",
        caught_by=(DOORS,),
    ),
)
