"""The parts of the campaign rewind.py."""
