"""The indexed decision equals the plain one over all entries, whatever images the index followed before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.image import Acl, MetadataImage, ShardedMap
from metaquorum.metadata.settings.acls import Operation
from tests.unit.metadata.plain_authorizer import plain_allows, plain_allows_any

# Few values, so that entries collide; those at the end are of a newer release.
NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "*a", "hardcode", "hard"])
PRINCIPALS = st.sampled_from(["User:a", "User:b", "User:*", "Group:a", "User:root"])
HOSTS = st.sampled_from(["*", "1.1.1.1", "::1"])
OPERATIONS = st.sampled_from([*range(1, 15), 99])
ACLS = st.builds(
    Acl,
    resource_type=st.sampled_from([2, 3, 77]),
    resource_name=NAMES,
    pattern_type=st.sampled_from([3, 4, 4, 3, 9]),
    principal=PRINCIPALS,
    host=HOSTS,
    operation=OPERATIONS,
    permission_type=st.sampled_from([2, 3, 3, 8]),
)
CALLERS = st.builds(Caller, PRINCIPALS, st.sampled_from(["1.1.1.1", "::1", "9.9.9.9"]))


@given(
    st.lists(st.dictionaries(st.integers(0, 30), ACLS, max_size=12), min_size=1, max_size=4),
    CALLERS,
    st.sampled_from(sorted(Operation)[1:]),
    st.sampled_from([2, 3]),
    NAMES,
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_equal_to_the_plain_rule(
    generations: list[dict[int, Acl]],
    caller: Caller,
    operation: Operation,
    resource_type: int,
    name: str,
    open_if_none: bool,
) -> None:
    rules = {"super_users": frozenset({"User:root"}), "allow_everyone": open_if_none}
    authorizer = Authorizer(**rules)
    image = MetadataImage()
    for acls in generations:
        builder = image.acls.builder()
        for acl_id in range(31):
            key = acl_id.to_bytes(16, "big")
            builder.put(key, acls[acl_id]) if acl_id in acls else builder.remove(key)
        image = replace(image, acls=builder.freeze())
        plain = list(acls.values())
        assert authorizer.allows(image, caller, operation, resource_type, name) == plain_allows(
            plain, caller, operation, resource_type, name, **rules
        )
        assert authorizer.allows_any(image, caller, operation, resource_type) == plain_allows_any(
            plain, caller, operation, resource_type, **rules
        )
    # A request on an image older than the last one is decided by that image's own entries.
    assert not Authorizer().allows(MetadataImage(), caller, operation, resource_type, name)
    authorizer.allows(replace(image, acls=ShardedMap()), caller, operation, resource_type, name)
    assert authorizer.allows(image, caller, operation, resource_type, name) == plain_allows(
        list(generations[-1].values()), caller, operation, resource_type, name, **rules
    )
