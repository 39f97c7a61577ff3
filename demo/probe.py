"""Connects to a port of this machine every millisecond until SIGTERM, and prints the results as one line of JSON.

Usage: probe.py PORT. The keys of the output:

  made         number of established connections
  refused      number of refused connections
  refused_s    longest time from a refused connection to the next established connection, in seconds
  refuses_now  whether the last connection with a result was refused
  unanswered   number of connections that were neither established nor refused within one second. The accept queue is
               then full, because the program of the listener gets no processor.
"""
import json
import signal
import socket
import struct
import sys
import time

PORT = int(sys.argv[1])
PERIOD_S = 0.001
# A value for SO_LINGER: close(2) resets the connection. Otherwise, a thousand sockets per second would enter TIME_WAIT.
RESET = struct.pack("ii", 1, 0)
running = True


def stop(*_):
    global running
    running = False


def connect():
    """Makes one connection. Returns True if it was established, False if it was refused, None after one second."""
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
