"""A plain call is read by a shorter way, to the same, and whatever is read of any other is known not to be plain."""

from typing import Any

from proxy.wire.body_fields import RARE_IN_CHATS, RARE_SAMPLING, chat_prompt, sampling_fields
from proxy.wire.openai import read_chat

USER = {"role": "user", "content": "hi"}


class Asked(dict[str, Any]):
    """Notes what it is asked for."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def test_a_plain_chat_is_read_shorter_to_the_same() -> None:
    plain = {"model": "m", "messages": [USER, {"role": "user", "content": [{"type": "text", "text": "é"}]}], "max_tokens": 7}
    whole = read_chat({**plain, "n": None, "tools": None})  # which the shorter way does not know
    assert read_chat(plain) == whole
    assert read_chat(plain).chats[0].template_kwargs is not read_chat(plain).chats[0].template_kwargs


def test_whatever_is_read_of_a_call_takes_the_longer_way() -> None:
    asked = Asked({"n": 1})
    sampling_fields(asked)
    assert asked.names == RARE_SAMPLING | {"model", "stream"}
    asked = Asked({"tools": []})
    chat_prompt(asked, [USER])
    assert asked.names == RARE_IN_CHATS
