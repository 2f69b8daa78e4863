"""The admin token comes from a file or a variable, sound or not at all, and is shown nowhere."""

from pathlib import Path

import pytest

from proxy.config.admin_token import CHARS_MIN, AdminTokenError, admin_token
from proxy.config.settings import SettingsError, read_settings, unread_variables

TOKEN = "t" * CHARS_MIN


def test_the_file_goes_before_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}-of-the-file\n", encoding="utf-8")
    assert admin_token(path, {"KVGATE_ADMIN_TOKEN": TOKEN}) == f"{TOKEN}-of-the-file"
    assert admin_token(None, {"KVGATE_ADMIN_TOKEN": TOKEN}) == TOKEN
    assert admin_token(None, {"KVGATE_ADMIN_TOKEN": ""}) is None


@pytest.mark.parametrize("text", ["t" * (CHARS_MIN - 1), "two words of enough length", "tökentökentökentöken", "\n"])
def test_what_is_no_token_is_refused_without_being_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    for arguments in ((path, {}), (None, {"KVGATE_ADMIN_TOKEN": text})):
        with pytest.raises(AdminTokenError, match="at least 16 printable") as error:
            admin_token(*arguments)
        assert text.strip() not in str(error.value) or not text.strip()
    with pytest.raises(AdminTokenError, match="cannot be read"):
        admin_token(tmp_path / "none", {})


def test_the_settings_hold_it_and_do_not_show_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN, encoding="utf-8")
    for flags, environ in (
        ({"admin_token_file": str(path)}, {}),
        ({}, {"KVGATE_ADMIN_TOKEN": TOKEN}),
        ({}, {"KVGATE_ADMIN_TOKEN_FILE": str(path)}),
    ):
        settings = read_settings(flags, environ)
        assert settings.admin_token == TOKEN
        assert TOKEN not in repr(settings)
    with pytest.raises(SettingsError, match=r"KVGATE_ADMIN_TOKEN: .*16 printable"):
        read_settings({}, {"KVGATE_ADMIN_TOKEN": "short"})
    assert unread_variables({"KVGATE_ADMIN_TOKEN": TOKEN}) == []
