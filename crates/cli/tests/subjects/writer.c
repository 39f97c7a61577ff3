/* A subject that changes files in many ways. Each run makes the same changes. If `undying` rolls
 * back the files, the files after STEPS steps do not depend on the moments at which the subject was
 * killed.
 *
 *   writer DIRECTORY STEPS
 *
 * Each step writes a line to standard output. If a call fails, the subject prints a message and
 * exits with 1. At the end it exits with 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define BLOCKS 64
#define KEPT 5
#define NAP_NS 4000000

static int step;

static long must(long value, const char *call)
{
	if (value < 0) {
		fprintf(stderr, "writer: step %d: %s: %s\n", step, call, strerror(errno));
		exit(1);
	}
	return value;
}

static const char *named(const char *format, int number)
{
	static char names[4][64];
	static int next;
	char *name = names[next++ % 4];
	snprintf(name, sizeof(names[0]), format, number);
	return name;
}

static void put(const char *path, int flags, const char *text)
{
	int file = must(open(path, O_WRONLY | O_CREAT | flags, 0644), "open");
	must(write(file, text, strlen(text)), "write");
	must(close(file), "close");
}

/* Creates and deletes files, hard links, symbolic links and directories, and changes modes. */
static void names(void)
{
	char text[64];
	snprintf(text, sizeof(text), "content of step %d\n", step);
	put(named("made.%d", step), O_EXCL, text);
	if (step > KEPT)
		must(unlink(named("made.%d", step - KEPT)), "unlink");
	if (step % 3 == 0) {
		must(mkdir(named("dir.%d", step), 0755), "mkdir");
		put(named("dir.%d/inner", step), O_EXCL, text);
		must(symlink(text, named("link.%d", step)), "symlink");
		must(link(named("made.%d", step), named("hard.%d", step)), "link");
		must(chmod(named("made.%d", step), 0600), "chmod");
	}
	if (step % 3 == 0 && step > 6) {
		must(unlink(named("dir.%d/inner", step - 6)), "unlink inner");
		must(rmdir(named("dir.%d", step - 6)), "rmdir");
		must(unlink(named("link.%d", step - 6)), "unlink link");
		must(unlink(named("hard.%d", step - 6)), "unlink hard");
	}
}

int main(int count, char **words)
{
	char block[BLOCK], text[128];
	int steps, log, table;
	char *mapped;

	if (count != 3)
		return 2;
	steps = atoi(words[2]);
	must(chdir(words[1]), "chdir");
	log = must(open("log", O_WRONLY | O_CREAT | O_APPEND, 0644), "open log");
	table = must(open("table", O_RDWR | O_CREAT, 0644), "open table");
	must(ftruncate(table, (BLOCKS + 1) * BLOCK), "ftruncate");
	mapped = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, table, BLOCKS * BLOCK);
	must(mapped == MAP_FAILED ? -1 : 0, "mmap");
	for (step = 1; step <= steps; step++) {
		struct timespec nap = { 0, NAP_NS };
		snprintf(text, sizeof(text), "line %d\n", step);
		must(write(log, text, strlen(text)), "append");
		printf("step %d\n", step);
		must(fflush(stdout), "say");
		memset(block, 'a' + step % 26, BLOCK);
		must(pwrite(table, block, BLOCK, (step * 7 % BLOCKS) * BLOCK), "pwrite");
		/* The new value depends on the old value, so a step that is executed twice is
		 * visible. */
		mapped[step % BLOCK] = (char)(mapped[step % BLOCK] + step % 7 + 1);
		put("state.new", O_TRUNC, text);
		must(rename("state.new", "state"), "rename");
		/* Opens the file, appends to it and closes it in each step. */
		put("diary", O_APPEND, text);
		if (step % 50 == 0)
			must(truncate("diary", step / 10), "truncate");
		names();
		nanosleep(&nap, NULL);
	}
	return 0;
}
