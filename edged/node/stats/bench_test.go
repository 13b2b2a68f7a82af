package stats

import (
	"fmt"
	"testing"
)

// BenchmarkSample30Pods is what a scrape of /metrics/resource costs on a node with 30 pods of one container.
func BenchmarkSample30Pods(b *testing.B) {
	m, s := newMachine(b)
	for i := range 30 {
		pod := fmt.Sprint(i)
		m.pod(pod)
		m.running(pod, "1000")
	}
	for b.Loop() {
		s.node.forget()
		s.pods.forget()
		if _, err := s.Node(b.Context()); err != nil {
			b.Fatal(err)
		}
		if _, err := s.PodsMemory(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
