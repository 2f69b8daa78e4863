"""A form with a recording becomes as many prompts as the engine makes of it; whatever else it is the engine judges."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.call import Call, CallKind
from proxy.wire.form_fields import read_form
from proxy.wire.lax import UnreadableCallError
from proxy.wire.read_call import CALL_ROUTES, read_call
from proxy.wire.speech import BYTES_PER_S_MIN, PIECE_S


def form(file: bytes | None = b"OggS", **texts: str) -> bytes:
    """A form as ``httpx`` writes it."""
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in texts.items()]
    if file is not None:
        head = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        parts.append(head + file)
    return b"".join(b"--b0undary\r\n" + part + b"\r\n" for part in parts) + b"--b0undary--\r\n"


def wav(seconds: float, rate: int = 16000) -> bytes:
    data = b"\0" * int(seconds * 2 * rate)
    described = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVE" + described + b"data" + struct.pack("<I", len(data)) + data


def read(body: bytes) -> Call:
    return read_call(CallKind.SPEECH, body)


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_both_routes_take_a_place(path: str) -> None:
    assert CALL_ROUTES[path] is CallKind.SPEECH


def test_what_a_form_says() -> None:
    call = read(form(model="whisper", prompt="naïve", stream="true", max_completion_tokens="7", user="u"))
    assert (call.model, call.stream, call.output_tokens_max, call.user) == ("whisper", True, 7, "u")
    assert (call.media, call.countable, call.usage_wanted) == ((("speech", 1),), False, True)
    assert [chat.text_bytes for chat in call.chats] == [6]
    plain = read(form())
    assert (plain.model, plain.stream, plain.output_tokens_max, plain.n) == (None, False, None, 1)


@pytest.mark.parametrize(("seconds", "pieces"), [(0.1, 1), (PIECE_S, 1), (PIECE_S + 0.01, 2), (10 * PIECE_S, 10)])
def test_a_wav_tells_how_long_it_plays(seconds: float, pieces: int) -> None:
    assert len(read(form(wav(seconds))).chats) == pieces


def test_of_another_format_there_are_rather_more_pieces() -> None:
    assert len(read(form(b"\0" * int(PIECE_S * BYTES_PER_S_MIN))).chats) == 1
    assert len(read(form(b"\0" * (int(PIECE_S * BYTES_PER_S_MIN) + 1))).chats) == 2
    assert len(read(form(b"RIFF____WAVE" + b"junk" * 3)).chats) == 1  # no format in it


def test_beams_are_copies() -> None:
    assert read(form(use_beam_search="true", n="4")).n == 4
    assert read(form(n="4")).n == 1


@pytest.mark.parametrize("body", [b"", b"{}", form(None, model="m"), form().replace(b"--b0undary\r\n", b"b0undary\r\n", 1)])
def test_what_is_no_form_with_a_file_is_for_the_engine(body: bytes) -> None:
    with pytest.raises(UnreadableCallError):
        read(body)


def test_bytes_of_a_file_that_look_like_a_part_are_none() -> None:
    found = read_form(form(b'--b0undary \r\nContent-Disposition: form-data; name="model"\r\n\r\nx', model="m"))
    assert found is not None
    assert found.texts == {"model": "m"}
    cut_off = read_form(form(b"0" * 50, model="m")[:-30])
    assert cut_off is not None
    assert (cut_off.texts, cut_off.files) == ({"model": "m"}, {})


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.text(max_size=20)), st.binary(max_size=60))
def test_any_form_is_read_back(texts: dict[str, str], file: bytes) -> None:
    body = form(file, **{name: value for name, value in texts.items() if name != "file"})
    found = read_form(body)
    if b"\r\n--b0undary" not in file and not any("\r\n--b0undary" in value for value in texts.values()):
        assert found is not None
        assert found.texts == {name: value for name, value in texts.items() if name != "file"}
        assert body[slice(*found.files["file"])] == file
