/* A subject whose memory and files have the same number. Before each step, the subject checks its files. If a
 * file has another number than the memory, the subject names it in the file `failed`, and exits with 9.
 *
 *   ledger DIRECTORY
 *
 * - `table` stays open, and is written in place
 * - `log` gets a line in each step, and is open only for the write
 * - `state` is replaced by rename(2)
 * - `made.N` is created in step N and removed in step N + 5 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CELLS 64
#define KEPT 5
#define LINE 8
#define NAP_NS 2000000

static int step, table;
static int cells[CELLS];

static void fail(const char *what)
{
	int file = open("failed", O_WRONLY | O_CREAT | O_APPEND, 0644);
	dprintf(file, "step %d: %s\n", step, what);
	_exit(9);
}

static void put(const char *path, int flags, const char *text)
{
	int file = open(path, O_WRONLY | O_CREAT | flags, 0644);
	if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text))
		fail(path);
	close(file);
}

static void check(void)
{
	char text[LINE + 1] = "", name[32];
	struct stat stat;
	int found[CELLS];
	if (pread(table, found, sizeof(found), 0) != sizeof(found) || memcmp(found, cells, sizeof(found)))
		fail("table");
	if (step == 0)
		return;
	int file = open("state", O_RDONLY);
	if (file < 0 || read(file, text, LINE) < 1 || atoi(text) != step)
		fail("state");
	close(file);
	file = open("log", O_RDONLY);
	if (file < 0 || fstat(file, &stat) || stat.st_size != (off_t)step * LINE)
		fail("length of log");
	if (pread(file, text, LINE, stat.st_size - LINE) != LINE || atoi(text) != step)
		fail("log");
	close(file);
	for (int made = step - KEPT > 0 ? step - KEPT : 0; made <= step + 2; made++) {
		snprintf(name, sizeof(name), "made.%d", made);
		if ((made > step - KEPT && made > 0 && made <= step) != !access(name, F_OK))
			fail(name);
	}
}

int main(int count, char **words)
{
	struct timespec nap = { 0, NAP_NS };
	char text[32], name[32];
	if (count != 2 || chdir(words[1]))
		fail("usage");
	table = open("table", O_RDWR | O_CREAT, 0644);
	if (pwrite(table, cells, sizeof(cells), 0) != sizeof(cells))
		fail("write");
	for (;;) {
		check();
		nanosleep(&nap, NULL);
		check();
		step++;
		cells[step % CELLS] = step;
		if (pwrite(table, cells + step % CELLS, sizeof(int), (off_t)(step % CELLS * sizeof(int))) < 0)
			fail("write");
		snprintf(text, sizeof(text), "%7d\n", step);
		put("log", O_APPEND, text);
		put("next", O_TRUNC, text);
		if (rename("next", "state"))
			fail("rename");
		snprintf(name, sizeof(name), "made.%d", step);
		put(name, O_EXCL, text);
		snprintf(name, sizeof(name), "made.%d", step - KEPT);
		if (step > KEPT && unlink(name))
			fail("unlink");
	}
}
