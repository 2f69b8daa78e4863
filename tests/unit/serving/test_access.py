"""Changes need the admin token, and without one there are none."""

import json

import pytest

from proxy.serving.access import AdminAccess

TOKEN = "correct-horse-battery"


@pytest.mark.parametrize(
    "fields",
    [
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": f"bearer  {TOKEN} "},
        {"x-kvgate-admin-token": TOKEN},
        {"authorization": "Bearer of-another-kind", "x-kvgate-admin-token": TOKEN},
    ],
)
def test_who_knows_the_token_may(fields: dict[str, str]) -> None:
    assert AdminAccess(TOKEN).refusal(fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer "},
        {"x-kvgate-admin-token": TOKEN[:-1]},
        {"x-kvgate-admin-token": TOKEN + "é"},
    ],
)
def test_who_does_not_is_told_what_is_missing(fields: dict[str, str]) -> None:
    answer = AdminAccess(TOKEN).refusal(fields)
    assert answer is not None
    assert answer.status == 401
    assert json.loads(answer.body)["error"]["code"] == "admin_token_wrong"
    assert TOKEN.encode() not in answer.body


def test_without_a_token_nobody_may_and_the_answer_says_how_to_set_one() -> None:
    for fields in ({}, {"authorization": "Bearer "}, {"x-kvgate-admin-token": ""}):
        answer = AdminAccess().refusal(fields)
        assert answer is not None
        assert answer.status == 403
        assert b"KVGATE_ADMIN_TOKEN" in answer.body
    assert TOKEN not in repr(AdminAccess(TOKEN))
