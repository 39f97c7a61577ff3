"""Connects to a port of this machine every millisecond until SIGTERM, then prints what it met as one line of JSON.

Usage: probe.py PORT. `refused_s`: the longest time from a refusal to the next connection that was made. `unanswered`:
connections that met neither within a second, since the queue of a listener whose program gets no processor was full.
"""
import json
import signal
import socket
import struct
import sys
import time

PORT = int(sys.argv[1])
PERIOD_S = 0.001
# Closing resets the connection, so that no thousand of them a second linger in TIME_WAIT.
RESET = struct.pack("ii", 1, 0)
running = True


def stop(*_):
    global running
    running = False


def connect():
    """True when it was made, False when it was refused, None when it was not answered."""
    with socket.socket() as client:
        client.settimeout(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        try:
            client.connect(("127.0.0.1", PORT))
        except TimeoutError:
            return None
        except OSError:
            return False
    return True


signal.signal(signal.SIGTERM, stop)
made = refused = unanswered = 0
longest = 0.0
since = None
while running:
    began = time.monotonic()
    outcome = connect()
    if outcome is None:
        unanswered += 1
    elif outcome:
        made += 1
        if since is not None:
            longest, since = max(longest, time.monotonic() - since), None
    else:
        refused += 1
        since = began if since is None else since
    time.sleep(max(0.0, PERIOD_S - (time.monotonic() - began)))
print(json.dumps({"made": made, "refused": refused, "refused_s": longest, "refuses_now": since is not None,
                  "unanswered": unanswered}))
