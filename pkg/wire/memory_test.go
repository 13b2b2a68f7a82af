package wire

import (
	"runtime"
	"testing"
)

// BenchmarkIdleMemory is what an idle link keeps in memory, both ends of it in this process.
func BenchmarkIdleMemory(b *testing.B) {
	for name, f := range map[string]Features{"plain": {}, "all features": AllFeatures()} {
		b.Run(name, func(b *testing.B) {
			const links = 300
			var perLink float64
			for b.Loop() {
				perLink = idleMemory(b, f, links)
			}
			b.ReportMetric(perLink, "B/link")
		})
	}
}

func idleMemory(b *testing.B, f Features, links int) float64 {
	cloud := newCloud(b, AcceptOptions{Limits: patient, Features: f})
	used := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	cloud.pair(b, cloud.addr, DialOptions{Features: f})
	before := used()
	for range links {
		edge, far := cloud.pair(b, cloud.addr, DialOptions{Features: f})
		read := make(chan struct{}, 1)
		for _, c := range []Conn{edge, far} {
			go func() {
				for {
					if _, err := c.Read(); err != nil {
						return
					}
					read <- struct{}{}
				}
			}()
		}
		if err := edge.Write(message(2000)); err != nil {
			b.Fatal(err)
		}
		<-read
	}
	return float64(used()-before) / float64(links)
}
