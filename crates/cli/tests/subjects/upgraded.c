/* A program that needs five files: its program file, a library, mapped data, a configuration that it
 * holds open, and a log. Each round it checks what it has of each file, and appends one line to the
 * log. A code page of the library is used only when the file FOLDER/late exists.
 *
 * upgraded FOLDER (with lib.so, data, config) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DATA_BYTES 65536

static char path[PATH_MAX];

static const char *in(const char *folder, const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void need(int is_right, const char *what)
{
	if (!is_right) {
		dprintf(2, "upgraded: %s is wrong\n", what);
		_exit(9);
	}
}

__attribute__((aligned(4096))) static long own_code(long n)
{
	return n * 5 + 1;
}

int main(int count, char **words)
{
	need(count == 2, "the command line");
	void *library = dlopen(in(words[1], "lib.so"), RTLD_NOW);
	need(library != NULL, "the library");
	long (*step)(long) = (long (*)(long))dlsym(library, "step");
	long (*late)(long) = (long (*)(long))dlsym(library, "late");
	int data = open(in(words[1], "data"), O_RDONLY | O_CLOEXEC);
	const char *mapped = mmap(NULL, DATA_BYTES, PROT_READ, MAP_PRIVATE, data, 0);
	need(mapped != MAP_FAILED && step && late, "the mapping");
	close(data);
	int config = open(in(words[1], "config"), O_RDONLY | O_CLOEXEC);
	int log = open(in(words[1], "log"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	need(config >= 0 && log >= 0, "a descriptor");
	long (*volatile own)(long) = own_code;
	for (long round = 1;; round++) {
		struct stat found;
		char word[7] = "";
		need(step(round) == round * 3 + 7, "the library");
		need(own(round) == round * 5 + 1, "the program");
		need(mapped[0] == 'd' && mapped[DATA_BYTES - 1] == 'd', "the mapped data");
		need(pread(config, word, 6, 0) == 6 && strcmp(word, "config") == 0, "the configuration");
		if (stat(in(words[1], "late"), &found) == 0)
			need(late(round) == round * 11, "the late page");
		dprintf(log, "line %ld\n", round);
		nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
	}
}
