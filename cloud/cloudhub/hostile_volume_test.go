package cloudhub

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzVolumeRequests: whatever arrives at the socket of the CSI driver, and in whatever number, reading and answering
// it takes memory in proportion to its size, and an answer is not much larger than its request.
func FuzzVolumeRequests(f *testing.F) {
	const request = `{"header":{"msg_id":"1"},"route":{"operation":"createvolume","resource":"node/n1/default/volume/v"},"content":"x"}`
	f.Add(request)
	f.Add(strings.Repeat(request, 50))
	f.Add(strings.Repeat("{}", 2000))
	f.Add(`{"route":{"resource":"node/` + strings.Repeat("\\u0000", 10_000) + `/default/volume/v"}}`)
	for _, text := range membound.JSON("", "", 64<<10) {
		f.Add(text)
		f.Add(`{"content":` + text + `}`)
		f.Add(`{"header":` + text + `}`)
		f.Add(`{"header":{"msg_id":` + text + `},"route":{"resource":` + text + `}}`)
	}
	hub, err := New(Options{Downstream: newCluster(), Upstream: &api{}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		server, client := net.Pipe()
		var answers int64
		// The smallest request is two bytes, and the error that answers it, with a header, 200.
		membound.Check(t, membound.Linear(len(text), 2048), func() {
			var all sync.WaitGroup
			all.Go(func() { hub.serveVolumes(t.Context(), server) })
			all.Go(func() { answers, _ = io.Copy(io.Discard, client) })
			_, _ = io.WriteString(client, text) // fails once the server has closed the connection
			_ = client.Close()
			all.Wait()
		})
		if most := int64(1000 * (len(text) + 1)); answers > most {
			t.Errorf("%d bytes are answered with %d, want at most %d", len(text), answers, most)
		}
	})
}
