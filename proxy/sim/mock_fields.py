"""A request body as an object with typed fields; faults are worded as the server's own body validation words them."""

import json
from typing import Any

from proxy.sim.mock_errors import fault, missing, plain_bad_request, validation_error


def read_json(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises ApiError."""
    if not body:
        raise validation_error(missing("body", None))
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise validation_error(
            {**fault("json_invalid", f"body.{error.pos}", "JSON decode error", {}), "ctx": {"error": error.msg}}
        ) from error
    except UnicodeDecodeError as error:
        raise plain_bad_request("There was an error parsing the body") from error
    if not isinstance(value, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise validation_error(fault("model_attributes_type", "body", text, value))
    return value


class Fields:
    """Typed access to a body's fields. Raises ApiError for a value of the wrong type; null is the default."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    def integer(self, name: str) -> int | None:
        """Integers, and what the server reads as one."""
        value = self.body.get(name)
        if value is None or type(value) is int:
            return value
        if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
            return int(value)
        if isinstance(value, str):
            if value.strip().lstrip("+-").isdigit():
                return int(value)
            text = "Input should be a valid integer, unable to parse string as an integer"
            raise validation_error(fault("int_parsing", f"body.{name}", text, value))
        if isinstance(value, float):
            text = "Input should be a valid integer, got a number with a fractional part"
            raise validation_error(fault("int_from_float", f"body.{name}", text, value))
        raise validation_error(fault("int_type", f"body.{name}", "Input should be a valid integer", value))

    def number(self, name: str) -> float | None:
        """Numbers."""
        value = self.body.get(name)
        if value is None or isinstance(value, int | float):
            return None if value is None else float(value)
        raise validation_error(fault("float_type", f"body.{name}", "Input should be a valid number", value))

    def flag(self, name: str, default: bool = False) -> bool:
        """Booleans."""
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise validation_error(fault("bool_type", f"body.{name}", "Input should be a valid boolean", value))

    def text(self, name: str) -> str | None:
        """Strings."""
        value = self.body.get(name)
        if value is None or isinstance(value, str):
            return value
        raise validation_error(fault("string_type", f"body.{name}", "Input should be a valid string", value))

    def strings(self, name: str) -> tuple[str, ...]:
        """A string or a list of them."""
        value = self.body.get(name)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise validation_error(fault("string_type", f"body.{name}", "Input should be a valid string", value))
        return tuple(values)
