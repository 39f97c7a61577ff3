"""The parts of the campaign `tests/campaigns/rewind.py`."""
