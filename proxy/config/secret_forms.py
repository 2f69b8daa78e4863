"""What secrets look like: as secret scanners know them, by their form."""

import re

SECRET = re.compile(
    r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic, LiteLLM and who follows them
    r"|\bhf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}"  # GitHub
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\."  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?i:\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,})"
)
