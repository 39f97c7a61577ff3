"""Formats rows as lines for a terminal, as Markdown, and as JSON."""
import datetime
import json
import os
import platform
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
REASON_MAX = 300


def verdict(row):
    """Returns the verdict as text: `works`, `works (fresh 1 of 3: reason)`, `refused (reason)`, `broken (reason)` or
    `unsupported (requirement)`."""
    if row["verdict"] != "works":
        return "%s (%s)" % (row["verdict"], printable(row["reason"]))
    lives = row["restored"] + row["fresh"]
    if not row["fresh"]:
        return "works"
    because = ": " + printable(row["reason"]) if row["reason"] else ""
    return "works (fresh %d of %d%s)" % (row["fresh"], lives, because)


def printable(text):
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= REASON_MAX else text[:REASON_MAX] + " …"


def line(row):
    return "%-22s %-9s %6.1f s  %s" % (row["program"], row["trial"], row["seconds"], verdict(row))


def summary(rows):
    """Returns the number of programs for each verdict, as text. The worst verdict of a program counts."""
    order = ["broken", "refused", "unsupported", "works"]
    worst = {}
    for row in rows:
        known = worst.get(row["program"], "works")
        worst[row["program"]] = min(known, row["verdict"], key=order.index)
    counts = {word: sum(1 for found in worst.values() if found == word) for word in reversed(order)}
    return "%d programs: %s" % (len(worst), ", ".join("%d %s" % (count, word) for word, count in counts.items()))


def head(seed):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    return {"command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), "commit": commit.strip(),
            "kernel": platform.release(), "processors": os.cpu_count(), "seed": seed,
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


COLUMNS = ("program", "version", "group", "trial", "verdict", "acknowledged", "restored", "fresh", "s")


def cells(row):
    return [row["program"], row["version"], row["group"], row["trial"], verdict(row), row["acknowledged"], row["restored"],
            row["fresh"], row["seconds"]]


def markdown(title, facts, columns, lines):
    """Returns a Markdown document: a title, a list of facts, and a table."""
    head = ["# " + title, "", *("- " + fact for fact in facts), "", "| %s |" % " | ".join(columns), "|---" * len(columns) + "|"]
    rows = ["| %s |" % " | ".join(str(cell).replace("|", "\\|") for cell in line) for line in lines]
    return "\n".join([*head, *rows]) + "\n"


def write_report(path, rows, about):
    """Writes the rows to a file: JSON if its name ends in .json, else Markdown."""
    with open(path, "w") as file:
        if path.endswith(".json"):
            json.dump({**about, "rows": rows}, file, indent=1)
            file.write("\n")
        else:
            facts = [*("%s: %s" % item for item in about.items()), summary(rows)]
            file.write(markdown("Field suite", facts, COLUMNS, map(cells, rows)))
