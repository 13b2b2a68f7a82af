package csi

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzNodeAnnotation: whatever the annotation of a Node says of drivers' ids for it, marking the Node takes memory in
// proportion to it, and an error is short.
func FuzzNodeAnnotation(f *testing.F) {
	f.Add(`{"disk.example":"n1"}`, "disk.example", "n1")
	f.Add("null", "d", "n")
	for _, text := range membound.JSON("", "", 64<<10) {
		f.Add(text, "d", "n")
		f.Add(`{"d":`+text+`}`, "d", "n")
	}
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, `,"%x":""`, i)
	}
	f.Add("{"+many.String()[1:]+"}", "d", "n")
	f.Fuzz(func(t *testing.T, text, driver, id string) {
		node := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "edge-1", Annotations: map[string]string{annotationIDs: text}},
		}
		now := map[string]storagev1.CSINodeDriver{driver: {Name: driver, NodeID: id}}
		var marked *v1.Node
		var err error
		// An id is 6 bytes there, and two texts in a map and in the sorted list of its keys here.
		membound.Check(t, membound.Linear(len(text)+len(driver)+len(id), 128), func() {
			marked, err = markNode(node, nil, now, nil)
		})
		if err != nil && (marked != nil || len(err.Error()) > 2000) {
			t.Errorf("markNode = %v, an error of %d bytes; want no Node, and at most 2000", marked, len(err.Error()))
		}
	})
}
