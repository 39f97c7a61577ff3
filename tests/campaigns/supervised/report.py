"""Formats the rows of the campaign as lines for a terminal, as Markdown, and as CSV."""
from lib import table

from .trials import NO_FILE

# The document contains the table between these two lines.
BEGIN, END = "<!-- begin: written by tests/campaigns/channels.py --write-docs -->", "<!-- end -->"
COLUMNS = ("server", "policy", "kills", "failed", "no file", "ended", "idle ended", "answered", "longest connect, ms", "longest request, ms",
           "back after, ms", "answers lost", "done twice", "levels", "verdict")
CLIENT_COLUMNS = ("server", "policy", "client", "connected", "answered", "ended", "failed", "failures", "connect_ms",
                  "request_ms", "lost", "twice")
DEATH_COLUMNS = ("server", "policy", "death", "second", "followed_by", "seq", "restore_ms", "back_ms")


def verdict(row):
    if row["verdict"] == "works":
        return "holds"
    word = {"broken": "DID NOT HOLD"}.get(row["verdict"], row["verdict"])
    return "%s (%s)" % (word, table.printable(row["reason"]))


def cells(row):
    """Returns the cells of a row for the table."""
    head = ["%s %s" % (row["server"], row["version"]), row["policy"]]
    if "clients" not in row:
        return [*head, *[""] * (len(COLUMNS) - 3), verdict(row)]
    kills, failures = row["kills"], row["failures"]
    shown = str(sum(kills.values()))
    if set(kills) != {"root"}:
        shown += " (%s)" % ", ".join("%s %d" % item for item in sorted(kills.items()))
    back = "%.0f (%.0f)" % tuple(row["back_ms"]) if row["back_ms"] else ""
    numbered = any("numbered" in one["client"] for one in row["clients"])
    idle = [one["ended"] for one in row["clients"] if one["client"].startswith("idle")]
    lost = "all" if row["policy"] == "stateless" else row["lost"]
    return [*head, shown, sum(failures.values()) - failures.get(NO_FILE, 0), failures.get(NO_FILE, 0), row["ended"],
            "%d of %d" % (sum(idle), len(idle) * sum(kills.values())), row["answered"], "%.0f" % row["connect_ms"], "%.0f" % row["request_ms"], back, lost if numbered else "",
            row["twice"] if numbered else "", ", ".join(row.get("levels", ())), verdict(row)]


def line(row):
    """Returns a row as one line of text."""
    texts = ["%s %s" % (name, cell) for name, cell in zip(COLUMNS[2:-1], cells(row)[2:-1]) if cell != ""]
    extra = "; descriptors of the guardian %d to %d" % tuple(row["descriptors"]) if "descriptors" in row else ""
    return "%-20s %-12s %s%s; %s s: %s" % (row["server"], row["policy"], "; ".join(texts), extra, row.get("seconds", 0),
                                           verdict(row))


def client_lines(rows):
    for row in rows:
        for one in row.get("clients", ()):
            failures = ", ".join("%d x %s" % (count, name) for name, count in one["failures"].items())
            yield [row["server"], row["policy"], one["client"], one["connected"], one["answered"], one["ended"],
                   sum(one["failures"].values()), failures, one["connect_ms"], one["request_ms"], one["lost"], one["twice"]]


def death_lines(rows):
    for row in rows:
        for one in row.get("returns", ()):
            yield [row["server"], row["policy"], *(one[name] for name in DEATH_COLUMNS[2:])]


def write_results(path, about, rows):
    """Writes a Markdown file with the table, and a second table with a row for each client."""
    facts = ["%s: %s" % item for item in about.items()]
    with open(path, "w") as file:
        file.write(table.markdown("Clients of components that are killed", facts, COLUMNS, map(cells, rows)))
        file.write("\nClient by client:\n\n| %s |\n%s\n" % (" | ".join(CLIENT_COLUMNS), "|---" * len(CLIENT_COLUMNS) + "|"))
        file.writelines("| %s |\n" % " | ".join(map(str, cells_of)) for cells_of in client_lines(rows))


def write_docs(path, rows):
    """Replaces the table in the document."""
    with open(path) as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    lines = ["| %s |" % " | ".join(COLUMNS), "|---" * len(COLUMNS) + "|"]
    lines += ["| %s |" % " | ".join(str(cell).replace("|", "\\|") for cell in cells(row)) for row in rows]
    with open(path, "w") as file:
        file.write("%s%s\n\n%s\n\n%s%s" % (before, BEGIN, "\n".join(lines), END, after))
