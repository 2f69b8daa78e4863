"""What secrets look like: as secret scanners know them, by their form."""

import re

# None begins within a word of its own letters, so a text is read once.
SECRET = re.compile(
    r"(?<![\w-])sk-(?:[A-Za-z0-9]+[-_])*[A-Za-z0-9]{16,}"  # OpenAI, Anthropic, LiteLLM; hosts have no word as long
    r"|\bhf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}"  # GitHub
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|(?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\."  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?i:\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,})"
)
