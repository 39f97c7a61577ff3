"""The demo: kills redis-server, a python3 program, a build and the programs of a system with SIGKILL. All continue.

Usage: demo.py UNDYING, where UNDYING is the path of the program undying. run.sh starts this script. Exit status 0: all
checks of the demo have passed.
"""
import os
import shutil
import signal
import sys
import tempfile
import time

# Python must not create __pycache__ directories in the repository. With sudo, they would belong to root.
sys.dont_write_bytecode = True

import build_part  # noqa: E402
import guarded  # noqa: E402
import python_part  # noqa: E402
import redis_part  # noqa: E402
import system_part  # noqa: E402
from screen import Failure, Screen  # noqa: E402


def main():
    undying = sys.argv[1]
    # These signals become exceptions, so that the `finally` block ends all programs and removes the folder.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    screen = Screen()
    folder = tempfile.mkdtemp(prefix="undying-demo-")
    began = time.monotonic()
    try:
        screen.title("Programs are killed with SIGKILL, and continue.")
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
        # A second Ctrl-C must not interrupt the cleanup.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        guarded.end_all()
        shutil.rmtree(folder, ignore_errors=True)
    screen.title(f"All killed programs have continued. The demo took {time.monotonic() - began:.0f} s.")
    return 0


sys.exit(main())
