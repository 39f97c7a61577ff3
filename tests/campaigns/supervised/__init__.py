"""The parts of the campaign `tests/campaigns/channels.py`: servers under `undying up`, their clients, and kills."""
