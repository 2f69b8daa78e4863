"""Read bodies of ``/v1/audio/transcriptions`` and ``/v1/audio/translations``: a form with a recording.

The engine cuts a recording into pieces of ``PIECE_S`` and transcribes them all at once, each as a request of its own with the form's
``prompt`` before it. How long a WAV plays is in its head; of any other format it is estimated from its size at ``BYTES_PER_S_MIN``, so
that there are rather more pieces than fewer. What a piece takes is learned like that of an image (``adapters.ratio_counter``), from
answers that tell their usage, which streams do when asked; what it gives is bounded by ``max_completion_tokens``, else by the context.

Fails: a recording of music in a lossless format other than WAV counts several times its pieces, which is bounded by what the engine holds
at once (``serving.intake``). A body that is no form, or one without a file, is for the engine to refuse.
"""

from math import ceil

from proxy.wire.body_fields import output_tokens
from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.form_fields import read_form
from proxy.wire.lax import UnreadableCallError, lax_bool, lax_int, utf8_bytes

PIECE_S = 30.0  # max_audio_clip_s of Whisper and of most others
BYTES_PER_S_MIN = 3000.0  # speech in Opus at 24 kbit/s; MP3 and AAC take more
PIECES_MAX = 4096  # more than a day
WAV_HEAD_BYTES = 44  # before the samples, at least


def read_speech(body: bytes) -> Call:
    """Read a form. Raises UnreadableCallError."""
    form = read_form(body)
    if form is None or "file" not in form.files:
        raise UnreadableCallError("there is no form with a file")
    texts = form.texts
    start, end = form.files["file"]
    pieces = min(PIECES_MAX, max(1, ceil(seconds_of(body, start, end) / PIECE_S)))
    prompt_bytes = sum(utf8_bytes(texts.get(name, "")) for name in ("prompt", "hotwords"))
    copies = lax_int(texts["n"]) if lax_bool(texts.get("use_beam_search"), default=False) and "n" in texts else 1
    return Call(
        kind=CallKind.SPEECH,
        model=texts.get("model") or None,
        stream=lax_bool(texts.get("stream"), default=False),
        usage_wanted=True,  # nothing can be asked of a form in passing
        n=min(max(1, copies or 1), PIECES_MAX),
        output_tokens_max=output_tokens(texts.get("max_completion_tokens") or None, None),
        chats=tuple(ChatPrompt(messages=(), text_bytes=prompt_bytes) for _ in range(pieces)),
        countable=False,
        shares_prefix=False,
        beam_search=lax_bool(texts.get("use_beam_search"), default=False),
        media=(("speech", 1),),
        user=texts.get("user") or None,
        prompt_bytes=prompt_bytes * pieces,
    )


def seconds_of(body: bytes, start: int, end: int) -> float:
    """How long a recording plays that lies there."""
    rate = _wav_bytes_per_s(body, start, end)
    return (end - start - WAV_HEAD_BYTES) / rate if rate else (end - start) / BYTES_PER_S_MIN


def _wav_bytes_per_s(body: bytes, start: int, end: int) -> int:
    """Bytes a second of a WAV; 0 where it is none."""
    if body[start : start + 4] != b"RIFF" or body[start + 8 : start + 12] != b"WAVE":
        return 0
    at = start + len(b"RIFF....WAVE")
    for _ in range(16):  # what stands before the format is short, and rare
        if at + 20 > end:
            return 0
        if body[at : at + 4] == b"fmt ":
            return int.from_bytes(body[at + 16 : at + 20], "little")
        at += 8 + int.from_bytes(body[at + 4 : at + 8], "little")
    return 0
