"""Policy files and settings: a forgiving outside shape becomes a complete, frozen inside shape."""
