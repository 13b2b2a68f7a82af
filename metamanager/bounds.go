package metamanager

import (
	"bytes"
	"fmt"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// The size of messages is bounded on the wire. An element of a list takes as little as two bytes there, and a container takes
// 700 in memory, so that the number of elements is bounded as well, before anything is decoded. The API server takes objects
// of 1.5 MiB: these bounds leave 30 bytes of that for each element of a pod.
const (
	podElementsMax = 50_000
	elementsMax    = 200_000
)

// checkElements returns an error for an object, or a list of them, that has too many elements to be decoded.
func checkElements(key resource.Key, data []byte) error {
	most := elementsMax
	if key.Type == resource.TypePod || key.Type == resource.TypePodPatch {
		most = podElementsMax
	}
	if hasMoreElements(data, most) {
		return fmt.Errorf("%s: content has more than %d elements", key, most)
	}
	return nil
}

// hasMoreElements reports whether a text in JSON has more elements than so many: those of lists, and fields of objects.
func hasMoreElements(data []byte, most int) bool {
	if len(data) < 2*most { // each takes two bytes
		return false
	}
	count := 0
	for i := 0; i < len(data) && count <= most; i++ {
		switch data[i] {
		case '"':
			i = endOfString(data, i+1)
		case ',', '{', '[':
			count++
		}
	}
	return count > most
}

// endOfString returns where the string ends that began before a place: at its quote, or at the end of a text that has none.
func endOfString(data []byte, at int) int {
	for at < len(data) {
		next := bytes.IndexAny(data[at:], `"\`)
		if next < 0 {
			return len(data)
		}
		at += next
		if data[at] == '"' {
			return at
		}
		at += 2 // what follows a backslash does not end it
	}
	return len(data)
}
