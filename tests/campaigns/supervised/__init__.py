"""Servers under `undying up`, their clients, and their kills. `tests/campaigns/channels.py` puts them together."""
