/*
 * The subject of own_parts.py: counts steps in memory and in files, and checks in each step that memory and files are of
 * the same moment.
 *
 * Usage: steps DIRECTORY. Writes the line START at its beginning, the line `STEP N` every tenth step, and the line WRONG
 * with a reason if a check or a call has failed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGES = 64, PAGE_BYTES = 4096, STEP_MICROSECONDS = 500 };

static void say(const char *what, unsigned long step)
{
    char line[128];
    int length = snprintf(line, sizeof line, "%s %lu\n", what, step);
    /* One write, so that lines do not mix. A reader that has ended is not the concern of this program. */
    if (write(1, line, length) < 0 && errno != EPIPE)
        _exit(3);
}

static void require(int holds, const char *what, unsigned long step)
{
    if (holds)
        return;
    char line[128];
    snprintf(line, sizeof line, "WRONG %s errno %d at", what, errno);
    say(line, step);
    _exit(3);
}

int main(int count, char **words)
{
    require(count == 2 && chdir(words[1]) == 0, "directory", 0);
    unsigned long *pages = calloc(PAGES, PAGE_BYTES);
    int log = open("log", O_RDWR | O_CREAT | O_APPEND, 0600);
    require(pages && log >= 0, "beginning", 0);
    say("START", getpid());
    for (unsigned long step = 0;; step++) {
        struct stat now;
        errno = 0;
        require(fstat(log, &now) == 0 && now.st_size == (off_t)(step * sizeof step), "log", step);
        unsigned long *page = pages + step % PAGES * (PAGE_BYTES / sizeof *pages);
        require(*page == (step >= PAGES ? step - PAGES : 0), "memory", step);
        *page = step;
        require(write(log, &step, sizeof step) == sizeof step, "write", step);
        /* Calls that `undying` watches: create, rename, remove. */
        int made = open("new", O_CREAT | O_EXCL | O_WRONLY, 0600);
        require(made >= 0 && close(made) == 0, "create", step);
        require(rename("new", step % 2 ? "odd" : "even") == 0, "rename", step);
        require(step < 2 || unlink(step % 2 ? "even" : "odd") == 0, "unlink", step);
        if (step % 10 == 0)
            say("STEP", step);
        usleep(STEP_MICROSECONDS);
    }
}
