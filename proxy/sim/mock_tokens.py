"""``/tokenize`` and ``/detokenize``: counts without generation, one prompt at a time, no length limit."""

from proxy.sim.mock_errors import dump, fault, missing, model_not_found, plain_bad_request, validation_error
from proxy.sim.mock_fields import Fields, read_json
from proxy.sim.mock_requests import ModelCard
from proxy.sim.mock_text import MockTokenizer, TemplateFailedError


def tokenize(body: bytes, tokenizer: MockTokenizer, card: ModelCard) -> bytes:
    """The answer to ``/tokenize``, completion or chat form. Raises ApiError."""
    fields = Fields(read_json(body))
    values = fields.body
    prompt, messages = values.get("prompt"), values.get("messages")
    if not isinstance(prompt, str) and not isinstance(messages, list):
        text = "Input should be a valid string"
        no_prompt = (
            missing("body.prompt", values) if "prompt" not in values else fault("string_type", "body.prompt", text, prompt)
        )
        raise validation_error(no_prompt, missing("body.messages", values))
    _check_model(fields, card)
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
    else:
        variables = dict(values.get("chat_template_kwargs") or {})
        variables["add_generation_prompt"] = fields.flag("add_generation_prompt", default=True)
        if values.get("tools") is not None:
            variables["tools"] = values["tools"]
        try:
            ids = tokenizer.encode(tokenizer.render(messages or [], **variables))
        except TemplateFailedError as error:
            raise plain_bad_request(str(error)) from error
    strings = tokenizer.token_strings(ids) if fields.flag("return_token_strs") else None
    return dump({"count": len(ids), "max_model_len": card.context_tokens_max, "tokens": ids, "token_strs": strings})


def detokenize(body: bytes, tokenizer: MockTokenizer, card: ModelCard) -> bytes:
    """The answer to ``/detokenize``. Raises ApiError."""
    fields = Fields(read_json(body))
    if "tokens" not in fields.body:
        raise validation_error(missing("body.tokens", fields.body))
    tokens = fields.body["tokens"]
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise validation_error(fault("list_type", "body.tokens", "Input should be a valid list", tokens))
    _check_model(fields, card)
    return dump({"prompt": tokenizer.decode(tokens)})


def _check_model(fields: Fields, card: ModelCard) -> None:
    model = fields.text("model")
    if model and model != card.name:
        raise model_not_found(model, card.name)
