"""A generated C project: similar source files (units), and a program that combines the results of all units."""
UNIT = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <time.h>
{bodies}
int unit_{unit}(int value) {{ return {calls}; }}
"""
BODY = """
static int part_{part}(int value)
{{
    int table[64];
    for (int at = 0; at < 64; at++)
        table[at] = (value * {factor} + at * {part}) % 1000003;
    for (int round = 0; round < 8; round++)
        for (int at = 1; at < 64; at++)
            table[at] = (table[at] + table[at - 1] * 3 + round) % 1000003;
    return table[63];
}}
"""
ARGUMENT = 5


def sources(units, parts):
    """Yields (name, text) of each source file: the units, and `main.c`, which prints one number."""
    for unit in range(units):
        bodies = "".join(BODY.format(part=part, factor=unit + 7) for part in range(parts))
        calls = " ^ ".join("part_%d(value)" % part for part in range(parts))
        yield "unit%d.c" % unit, UNIT.format(bodies=bodies, unit=unit, calls=calls)
    names = ["unit_%d" % unit for unit in range(units)]
    yield "main.c", "#include <stdio.h>\n%s\nint main(void) { printf(\"%%d\\n\", %s); return 0; }\n" % (
        "\n".join("int %s(int);" % name for name in names), " ^ ".join("%s(%d)" % (name, ARGUMENT) for name in names))


def printed(units, parts):
    """Returns the number that the built program must print."""
    due = 0
    for unit in range(units):
        for part in range(parts):
            table = [(ARGUMENT * (unit + 7) + at * part) % 1000003 for at in range(64)]
            for turn in range(8):
                for at in range(1, 64):
                    table[at] = (table[at] + table[at - 1] * 3 + turn) % 1000003
            due ^= table[63]
    return due
