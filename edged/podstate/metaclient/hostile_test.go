package metaclient

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzPatch: whatever the stored status of a pod says, it takes memory in proportion to its size and to maxElements,
// and so does the patch that is made of it.
func FuzzPatch(f *testing.F) {
	const head, tail = `{"metadata":{"uid":"u"},"status":{`, `}}`
	f.Add(head + `"phase":"Running","podIPs":[{"ip":"10.0.0.1"},{"$patch":"replace"}]` + tail)
	for _, text := range membound.JSON("", "", 64<<10) {
		for _, field := range []string{"containerStatuses", "conditions", "podIPs", "hostIPs", "resources", "phase",
			"x"} {
			f.Add(head + `"` + field + `":` + text + tail)
		}
	}
	f.Add(membound.Repeat(head+`"containerStatuses":[`, "{}", ",", "]"+tail, 1<<20))
	f.Add(head + `"allocatedResources":{"cpu":"` + strings.Repeat("9", 100_000) + `"}` + tail)
	f.Add(head + `"allocatedResources":{},"resources":{},"conditions":[],"podIPs":[]` + tail)
	f.Fuzz(func(t *testing.T, text string) {
		// The status of a container is 3 bytes there and 400 here, in a list that grows.
		membound.Check(t, membound.Linear(min(len(text), 3*maxElements), 2048)+uint64(len(text))*16, func() {
			uid, status, err := readPatch([]byte(text))
			if err != nil {
				return
			}
			if _, err := writePatch(uid, status); err != nil {
				t.Errorf("writePatch of a status that was read: %v, want no error", err)
			}
		})
	})
}
