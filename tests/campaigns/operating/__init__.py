"""The parts of the campaign `tests/campaigns/operated.py`: a server and its clients."""
