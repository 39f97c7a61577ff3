/* Proves that large sparse mappings are restored without being filled. 200 pages of 16 GiB contain
 * data, and all other pages stay zero and are not allocated. 1 TiB of reserved address space stays
 * reserved. */
#include "victim.h"
#include "victim_memory.h"

#define BYTES (16ull << 30)
#define TOUCHED 200u
#define RESERVED_BYTES (1ull << 40)
/* Far below the size of the mapping, and well above the memory that the program itself needs. */
#define RESIDENT_KIB_MAX (64u * 1024)

static struct victim_area area = { .name = "sparse", .length = BYTES };
static struct victim_area reserved = { .name = "reserved", .length = RESERVED_BYTES };

static unsigned char *touched_page(unsigned i)
{
	return area.at + (victim_mix(i) % (BYTES / VICTIM_PAGE)) * VICTIM_PAGE;
}

static void setup(void)
{
	area.at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(madvise(area.at, BYTES, MADV_NOHUGEPAGE));
	reserved.at = victim_map(RESERVED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	for (unsigned i = 0; i < TOUCHED; i++)
		victim_fill(touched_page(i), VICTIM_PAGE, i);
	victim_area_remember(&area);
	victim_area_remember(&reserved);
}

static void work(void)
{
	unsigned i = (unsigned)(victim_ticks % TOUCHED);
	check(victim_differs(touched_page(i), VICTIM_PAGE, i) < 0, "page %u is wrong", i);
	victim_fill(touched_page(i), VICTIM_PAGE, i);
}

static void verify(void)
{
	unsigned long resident = victim_status_number("VmRSS");
	check(resident < RESIDENT_KIB_MAX, "%lu KiB are resident", resident);
	for (unsigned i = 0; i < TOUCHED; i++)
		check(victim_differs(touched_page(i), VICTIM_PAGE, i) < 0, "page %u is wrong", i);
	victim_area_check_description(&area);
	victim_area_check_description(&reserved);
}

static void sabotage(void)
{
	touched_page(123)[4095] ^= 0x80;
}

static bool is_touched(const unsigned char *at)
{
	for (unsigned i = 0; i < TOUCHED; i++)
		if (touched_page(i) == at)
			return true;
	return false;
}

static void finish(void)
{
	for (unsigned i = 0; i < 1000; i++) {
		const unsigned char *at = area.at + (victim_mix(i + 100000) % (BYTES / VICTIM_PAGE)) * VICTIM_PAGE;
		if (!is_touched(at))
			victim_check_zero("an unused page", at, VICTIM_PAGE);
	}
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
