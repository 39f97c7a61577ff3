/* Has a System V shared memory segment that is locked in memory (SHM_LOCK). */
#include "victim.h"

#include <sys/shm.h>

#define BYTES 16384

static unsigned char *at;

static void setup(void)
{
	int id = must(shmget(IPC_PRIVATE, BYTES, IPC_CREAT | 0600));
	at = shmat(id, NULL, 0);
	/* The kernel removes the segment when the program ends. */
	must(shmctl(id, IPC_RMID, NULL));
	check(at != (void *)-1, "shmat: %m");
	if (shmctl(id, SHM_LOCK, NULL) != 0)
		victim_unsupported("SHM_LOCK: %m");
	victim_fill(at, BYTES, 1);
}

static void verify(void)
{
	check(victim_differs(at, BYTES, 1) < 0, "the segment has another content");
}

static void sabotage(void)
{
	at[99] ^= 1;
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
