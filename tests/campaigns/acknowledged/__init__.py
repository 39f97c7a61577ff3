"""The parts of the campaign `tests/campaigns/servers.py`: servers with acknowledged requests, and how they are run."""
