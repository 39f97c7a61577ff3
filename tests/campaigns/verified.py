#!/usr/bin/env python3
"""Does a page of a checkpoint differ from the memory of the program?

`undying run --every 10ms --verify-every 1` starts the subject, churn.c. After each checkpoint, while the subject is
still stopped, `undying` reads all pages back from the store. It compares them with the memory of the subject. The
campaign ends when --count checkpoints were compared.

Writes verified-TAG.txt. Exits with 1 if a page differed, if the subject found an error in its own state, or if fewer
than --count checkpoints were compared.
"""
import json
import os
import signal
import subprocess
import time

from campaign import GOOD, Findings, arguments, compile_churn, say_to

PATIENCE_S = 60


def state(command):
    said = say_to(command, "status", "churn", "--json")
    return json.loads(said.stdout)[0] if said.returncode == 0 else None


def campaign(options, scratch, say):
    command, work = [options.undying, "--store", os.path.join(scratch, "store")], os.path.join(scratch, "work")
    os.mkdir(work)
    log = open(os.path.join(scratch, "run.log"), "w")
    run = [*command, "run", "--name", "churn", "--every", options.every, "--verify-every", "1", "--restart", "never",
           "--tracker", options.tracker, "--", compile_churn(scratch), work]
    process = subprocess.Popen([*run, *(["wild"] if options.wild else [])], stdin=subprocess.DEVNULL, stdout=log,
                               stderr=log, start_new_session=True)
    begun, last, found = time.monotonic(), {}, {"checkpoints": 0}
    while found["checkpoints"] < options.count and time.monotonic() - begun < options.seconds and process.poll() is None:
        time.sleep(1)
        last = state(command) or last
        found = last.get("verified") or found
    seconds = time.monotonic() - begun
    if process.poll() is None:
        os.kill(last["pid"], signal.SIGUSR1)
    code = process.wait(PATIENCE_S)
    say("compared with the subject in %.0f s: %s" % (seconds, json.dumps(found)))
    say("the subject exited with %d (expected: %d); refusals: %s" % (code, GOOD, last.get("refusals")))
    wrongs = [name for name in os.listdir(work) if name.startswith("wrong.")]
    for name in wrongs:
        say("the subject found an error, see " + name)
    return found["checkpoints"] >= options.count and found["differences"] == 0 and code == GOOD and not wrongs


def main():
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of checkpoints to compare")
    parser.add_argument("--seconds", type=float, default=1200, help="time limit of the campaign, in seconds")
    parser.add_argument("--every", default="10ms")
    parser.add_argument("--tracker", default="auto")
    parser.add_argument("--wild", action="store_true", help="the subject also creates and removes shared memory")
    options = parser.parse_args()
    findings = Findings("verified", options)
    findings.run(lambda scratch: campaign(options, scratch, findings.say))


if __name__ == "__main__":
    main()
