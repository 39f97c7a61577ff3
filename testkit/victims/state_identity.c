/* Proves that the kernel's data about the program's memory is restored: command line, environment,
 * auxiliary vector, executable, and the addresses of code, data, stack and arguments. */
#include "victim.h"

#define TEXT_MAX 65536

struct file {
	const char *path;
	size_t length;
	char text[TEXT_MAX];
};

static struct file files[] = { { .path = "/proc/self/cmdline" }, { .path = "/proc/self/environ" },
			       { .path = "/proc/self/auxv" } };
#define FILES (sizeof(files) / sizeof(files[0]))

static char executable[PATH_MAX];
/* Fields of /proc/self/stat, as numbered in proc_pid_stat(5): code, stack, data, break, arguments,
 * environment. */
static const int address_fields[] = { 26, 27, 28, 45, 46, 47, 48, 49, 50, 51 };
#define ADDRESSES (sizeof(address_fields) / sizeof(address_fields[0]))
static unsigned long long addresses[ADDRESSES];

static size_t read_file(const char *path, char text[TEXT_MAX])
{
	size_t length = 0;
	ssize_t got;
	int fd = must(open(path, O_RDONLY | O_CLOEXEC));
	while ((got = must(read(fd, text + length, TEXT_MAX - length - 1))) > 0)
		length += (size_t)got;
	close(fd);
	text[length] = 0;
	return length;
}

static void read_addresses(unsigned long long into[ADDRESSES])
{
	static char text[TEXT_MAX];
	read_file("/proc/self/stat", text);
	char *at = strrchr(text, ')');
	int field = 2;
	check(at != NULL, "stat: %s", text);
	for (size_t i = 0; i < ADDRESSES; i++) {
		for (; field < address_fields[i]; field++)
			at = strchr(at, ' ') + 1;
		into[i] = strtoull(at, NULL, 10);
	}
}

static void read_link(char into[PATH_MAX])
{
	ssize_t length = must(readlink("/proc/self/exe", into, PATH_MAX - 1));
	into[length] = 0;
}

static void setup(void)
{
	for (size_t i = 0; i < FILES; i++)
		files[i].length = read_file(files[i].path, files[i].text);
	read_link(executable);
	read_addresses(addresses);
}

static void verify(void)
{
	static char text[TEXT_MAX];
	unsigned long long now[ADDRESSES];
	for (size_t i = 0; i < FILES; i++) {
		size_t length = read_file(files[i].path, text);
		check(length == files[i].length && memcmp(text, files[i].text, length) == 0, "%s changed", files[i].path);
	}
	check(strstr(files[0].text + strlen(files[0].text) + 1, victim_verdict) != NULL, "the command line is another");
	read_link(text);
	check(strcmp(text, executable) == 0, "the executable is %s, was %s", text, executable);
	read_addresses(now);
	for (size_t i = 0; i < ADDRESSES; i++)
		check(now[i] == addresses[i], "field %d of stat is %llx, was %llx", address_fields[i], now[i], addresses[i]);
	/* The auxiliary vector in memory, behind the environment, equals the copy of the kernel. */
	char **end = environ;
	while (*end != NULL)
		end++;
	check(memcmp(end + 1, files[2].text, files[2].length) == 0, "the auxiliary vector in memory is another");
}

/* Overwrites the program's own arguments in memory. */
static void sabotage(void)
{
	char *arguments = (char *)addresses[6];
	arguments[0] = '#';
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
