// Package malloc keeps the heap of the C library small: all threads share one, and its free memory can be returned. It
// is a package of its own because it needs cgo, which cloudcore is built without.
package malloc

/*
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

// glibc would create a heap for each thread; with this setting all threads share one. SQLite is the only user of the C
// heap, and Go runs its calls on any thread, so each heap would keep the memory that SQLite once needed there: 1.5 MB
// in all after some bursts of pods. This runs before Go starts its threads. Other C libraries have no such setting.
__attribute__((constructor)) static void one_heap(void) {
#ifdef M_ARENA_MAX
	const char *footprint = getenv("EDGECORE_FOOTPRINT");
	if (footprint == NULL || strcmp(footprint, "off") != 0)
		mallopt(M_ARENA_MAX, 1);
#endif
}

static void trim_heap(void) {
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
*/
import "C"

import "github.com/edgecore-io/edgecore/pkg/footprint"

// Trim returns free memory of the C heap to the kernel, also between parts that are in use. Other C libraries than
// glibc do so by themselves.
func Trim() {
	if !footprint.Off() {
		C.trim_heap()
	}
}
