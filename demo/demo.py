"""The demo: redis-server, a python3 program and a build are killed with SIGKILL and go on from their last checkpoint.

Usage: demo.py UNDYING. Started by run.sh. Exit status 0: everything that is promised was seen to hold.
"""
import os
import shutil
import signal
import sys
import tempfile
import time

import build_part
import guarded
import python_part
import redis_part
from screen import Failure, Screen


def main():
    undying = sys.argv[1]
    # So that whatever runs is ended, and the folder removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    screen = Screen()
    folder = tempfile.mkdtemp(prefix="undying-demo-")
    began = time.monotonic()
    screen.title("Three programs are killed with SIGKILL, and go on.")
    try:
        redis_part.run(screen, undying, os.path.join(folder, "redis"))
        python_part.run(screen, undying, os.path.join(folder, "python"))
        build_part.run(screen, undying, os.path.join(folder, "build"))
    except Failure as failure:
        screen.failed(str(failure))
        return 1
    except KeyboardInterrupt:
        screen.failed("interrupted")
        return 130
    finally:
        guarded.end_all()
        shutil.rmtree(folder, ignore_errors=True)
    screen.title(f"Each program was the same process as before, and went on. {time.monotonic() - began:.0f} s in all.")
    return 0


sys.exit(main())
