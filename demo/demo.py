"""The demo: redis-server, a python3 program, a build and the programs of a system are killed with SIGKILL, and go on.

Usage: demo.py UNDYING. Started by run.sh. Exit status 0: everything that is promised was seen to hold.
"""
import os
import shutil
import signal
import sys
import tempfile
import time

# Nothing may be left in the repository: with sudo it would belong to root.
sys.dont_write_bytecode = True

import build_part  # noqa: E402
import guarded  # noqa: E402
import python_part  # noqa: E402
import redis_part  # noqa: E402
import system_part  # noqa: E402
from screen import Failure, Screen  # noqa: E402


def main():
    undying = sys.argv[1]
    # So that whatever runs is ended, and the folder removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    screen = Screen()
    folder = tempfile.mkdtemp(prefix="undying-demo-")
    began = time.monotonic()
    try:
        screen.title("Programs are killed with SIGKILL, and go on.")
        redis_part.run(screen, undying, os.path.join(folder, "redis"))
        python_part.run(screen, undying, os.path.join(folder, "python"))
        build_part.run(screen, undying, os.path.join(folder, "build"))
        system_part.run(screen, undying, os.path.join(folder, "shop"))
    except Failure as failure:
        screen.failed(str(failure))
        return 1
    except KeyboardInterrupt:
        screen.failed("interrupted")
        return 130
    finally:
        # A second Ctrl-C does not leave it half done.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        guarded.end_all()
        shutil.rmtree(folder, ignore_errors=True)
    screen.title(f"Everything that was killed went on. {time.monotonic() - began:.0f} s in all.")
    return 0


sys.exit(main())
