"""Who is said to have been with a server when it died."""

from __future__ import annotations

from typing import Any

from eagle3.engines.completions import RequestFailed
from eagle3.engines.with_server import WithServer

A, B, C = ({"index": number} for number in range(3))


def there(found: WithServer) -> list[Any]:
    return [row["index"] for row in found.items]


def test_an_item_is_there_until_what_it_is_for_has_come() -> None:
    found = WithServer()
    found.begins(A)
    found.begins(B)
    found.is_answered()
    assert there(found) == [0, 1], "its file may be still to come"
    found.leaves(0)
    assert there(found) == [1]
    found.nobody()
    assert there(found) == []


def test_what_begins_after_a_failure_was_not_there_until_something_is_answered_again() -> None:
    found = WithServer()
    found.begins(A)
    found.fails(A, RequestFailed("status 500"))
    found.begins(B)
    assert there(found) == [0]
    found.fails(B, RequestFailed("status 500"))
    found.begins(C)
    found.is_answered()
    assert there(found) == [0, 2], "the answer says that it lives, so C is with it and not with the dead"


def test_who_never_reached_the_server_or_was_refused_is_not_there_but_who_was_there_before_is() -> None:
    found = WithServer()
    for item in (A, B):
        found.begins(item)
    found.fails(A, RequestFailed("no connection", unreachable=True))
    found.fails(B, RequestFailed("too long", refused=True))
    assert there(found) == []
    found.begins(C)
    assert there(found) == [2], "neither of the two says that the server is dying"
    found.fails(C, RequestFailed("cut"))
    found.begins(C)
    found.fails(C, RequestFailed("no connection", unreachable=True))
    assert there(found) == [2]


def test_a_request_that_was_cut_and_then_found_nobody_has_been_with_the_server() -> None:
    found = WithServer()
    found.begins(A)
    found.fails(A, RequestFailed("no connection", unreachable=True, reached=True))
    assert there(found) == [0]
