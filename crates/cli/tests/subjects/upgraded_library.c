/* The library of upgraded.c. `late` is alone in its pages. */
static const char version[4096] = VERSION;

long step(long n)
{
	return n * 3 + (version[0] == 'a' ? 7 : 8);
}

__attribute__((aligned(4096))) long late(long n)
{
	return n * 11;
}

__attribute__((aligned(4096))) long behind(long n)
{
	return n;
}
