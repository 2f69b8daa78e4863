"""Calls that only prefill: every prompt is one, lists multiply, and nothing is generated."""

import json
from typing import Any

import pytest

from proxy.wire.call import Call, CallKind
from proxy.wire.lax import UnreadableCallError
from proxy.wire.read_call import CALL_ROUTES, read_call


def read(kind: CallKind, **fields: Any) -> Call:
    return read_call(kind, json.dumps({"model": "m"} | fields).encode())


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)  # fmt: skip
def test_embeddings(given: Any, prompts: tuple[Any, ...]) -> None:
    call = read(CallKind.POOLING, input=given)
    assert call.prompts == prompts
    assert call.output_tokens_max == 1
    assert call.countable


def test_conversations_are_pooled_too() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    call = read(CallKind.POOLING, messages=messages)
    assert call.media == (("image", 1),)
    assert call.chat is not None
    assert not call.chat.add_generation_prompt
    assert len(read(CallKind.POOLING, messages=[messages, messages]).chats) == 2
    assert len(read(CallKind.POOLING, input=messages).chats) == 1


def test_coheres_forms() -> None:
    assert read(CallKind.POOLING, texts=["a", "b"]).prompts == ("a", "b")
    call = read(CallKind.POOLING, inputs=[{"content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}], images=["data:,"])
    assert (len(call.chats), call.media, call.countable) == (2, (("image", 2),), False)


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({"query": "abc", "documents": ["d", "ef"]}, [4, 5]),
        ({"queries": ["a", "bb"], "documents": ["c", "d"]}, [2, 3]),
        ({"text_1": "a", "text_2": "b"}, [2]),
        ({"data_1": "a", "data_2": ["b", "c", "d"]}, [2, 2, 2]),
    ],
)  # fmt: skip
def test_pairs(fields: dict[str, Any], pairs: list[int]) -> None:
    call = read(CallKind.RANKING, **fields)
    assert [chat.text_bytes for chat in call.chats] == pairs
    assert not call.countable


def test_a_document_with_an_image() -> None:
    document = {"content": [{"type": "text", "text": "abc"}, {"type": "image_url", "image_url": {"url": "data:,"}}]}
    assert read(CallKind.RANKING, query="a", documents=[document]).media == (("image", 1),)


def test_generative_scoring() -> None:
    assert read(CallKind.SCORING, query=[1, 2], items=[[3], [4, 5]]).prompts == ((1, 2, 3), (1, 2, 4, 5))
    texts = read(CallKind.SCORING, query="abc", items=["d", "ef"])
    assert [chat.text_bytes for chat in texts.chats] == [4, 5]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CallKind.POOLING, {}), (CallKind.POOLING, {"input": []}), (CallKind.RANKING, {"query": "a"}),
        (CallKind.RANKING, {"queries": ["a", "b"], "documents": ["c"]}), (CallKind.SCORING, {"query": "a", "items": []}),
    ],
)  # fmt: skip
def test_nothing_to_do(kind: CallKind, fields: dict[str, Any]) -> None:
    with pytest.raises(UnreadableCallError):
        read(kind, **fields)


def test_batches_and_token_ids() -> None:
    user = {"role": "user", "content": "abc"}
    batch = read(CallKind.CHAT_BATCH, messages=[[user], [user, user]], max_tokens=3)
    assert [len(chat.messages) for chat in batch.chats] == [1, 2]
    assert batch.prompt_bytes == sum(chat.text_bytes for chat in batch.chats)
    generate = read(CallKind.GENERATE, token_ids=[1, 2], sampling_params={"n": 2, "max_tokens": 5}, stream=True)
    assert (generate.prompts, generate.n, generate.output_tokens_max, generate.stream) == (((1, 2),), 2, 5, True)
    assert read(CallKind.GENERATE, token_ids=[1], sampling_params={}).output_tokens_max is None


def test_every_kind_has_a_route() -> None:
    assert set(CALL_ROUTES.values()) == set(CallKind)


def test_decisions_are_a_prompt_for_each_question() -> None:
    questions = {"a": {"type": "yes_no", "instructions": "Is it?"}, "b": {"type": "choice", "criteria": ["x", "y"]}}
    call = read(CallKind.DECISIONS, state="it is", questions=questions, images=["data:,"])
    assert CALL_ROUTES["/v1/systemone"] is call.kind is CallKind.DECISIONS
    assert (len(call.chats), call.output_tokens_max, call.media, call.countable) == (2, 1, (("image", 1),), False)
    assert all(chat.text_bytes > len("it is") for chat in call.chats)
    for wrong in ({"state": "s"}, {"questions": questions}, {"state": "s", "questions": {}}, {"state": "s", "questions": [1]}):
        with pytest.raises(UnreadableCallError):
            read(CallKind.DECISIONS, **wrong)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, CallKind.CHAT),
        ({"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}, CallKind.CHAT),
        ({"prompt": "hi", "input": "hi"}, CallKind.COMPLETIONS),
        ({"input": "hi"}, CallKind.POOLING),
        ({"query": "q", "documents": ["a", "b"]}, CallKind.RANKING),
        ({"text_1": "q", "text_2": "a"}, CallKind.RANKING),
    ],
)
def test_an_invocation_is_what_its_fields_make_it(fields: dict[str, Any], kind: CallKind) -> None:
    assert CALL_ROUTES["/invocations"] is CallKind.INVOCATION
    assert read(CallKind.INVOCATION, **fields) == read(kind, **fields)


def test_an_invocation_of_nothing_is_for_the_engine() -> None:
    with pytest.raises(UnreadableCallError):
        read(CallKind.INVOCATION, messages=None)


def test_coheres_chat_is_a_chat_that_nothing_can_be_asked_of() -> None:
    call = read(CallKind.COHERE_CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True)
    assert CALL_ROUTES["/cohere/v2/chat"] is call.kind is CallKind.COHERE_CHAT
    assert (call.output_tokens_max, call.stream, call.usage_wanted, call.countable) == (5, True, True, False)
