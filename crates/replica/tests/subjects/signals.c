/* Prints its pid, each SIGUSR1 with its number, and each line that it reads with the number of signals until then. At the
   end of the input, prints `end` and exits with 3. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t count;

static void say(const char *word, int number)
{
    char text[64];
    int length = snprintf(text, sizeof text, number < 0 ? "%s\n" : "%s %d\n", word, number);
    (void)!write(1, text, (size_t)length);
}

static void handler(int signal)
{
    (void)signal;
    count++;
    say("signal", count);
}

int main(void)
{
    /* Without SA_RESTART, read fails with EINTR. */
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    char text[64];
    int length = snprintf(text, sizeof text, "%d\n", getpid());
    (void)!write(1, text, (size_t)length);
    for (;;) {
        ssize_t got = read(0, text, sizeof text);
        if (got == 0)
            break;
        if (got > 0)
            say("read", count);
        else if (errno != EINTR)
            return 1;
    }
    say("end", -1);
    return 3;
}
