"""Many filters over many entries of access control: what they are compared with is bounded."""

from __future__ import annotations

import pytest

from metaquorum.controller.settings import access
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.settings import DeleteAclsRequest
from metaquorum.metadata.settings.acls import AclFilter
from tests.unit.controller.test_settings_decisions import decide, entry, errors, image_of


def test_filters_with_names_are_compared_with_the_entries_of_that_name_and_the_rest_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each filter over all entries would be a turn of the loop of many seconds."""
    monkeypatch.setattr(access, "COMPARED_MAX", 25)
    image = image_of(*(entry(n, resource_name=f"t{n}") for n in range(1, 11)))
    named = tuple(AclFilter(resource_name=f"t{n}", pattern_type=3) for n in range(1, 11))
    assert len(decide(image, DeleteAclsRequest(filters=named)).records) == 10
    open_ones = (AclFilter(principal="User:nobody"),) * 3
    assert errors(decide(image, DeleteAclsRequest(filters=open_ones))) == [ErrorCode.POLICY_VIOLATION] * 3
    assert errors(decide(image, DeleteAclsRequest(filters=open_ones[:2]))) == [ErrorCode.NONE] * 2
    monkeypatch.setattr(access, "COMPARED_MAX", 5)
    assert len(decide(image, DeleteAclsRequest(filters=(AclFilter(),))).records) == 10, "one always may"
