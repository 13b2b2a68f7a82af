package edgecontroller

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// thiefReports are what a hostile node reports to get the port 20003 of another node at the address of a cloudcore.
func thiefReports(address string) map[string]string {
	first := `{"type":"InternalIP","address":"` + address + `"}`
	own := `{"type":"InternalIP","address":"10.0.0.9"}`
	port := `"daemonEndpoints":{"kubeletEndpoint":{"Port":20003}}`
	status := func(parts ...string) string { return `{"status":{` + strings.Join(parts, ",") + `}}` }
	list := func(elements ...string) string { return `"addresses":[` + strings.Join(elements, ",") + `]` }
	return map[string]string{
		"address and port": status(list(first, own, `{"$patch":"replace"}`), port),
		"merged":           status(list(first), port),
		"the port alone":   status(port),
		"the port twice": status(list(first, own),
			`"daemonEndpoints":{"kubeletEndpoint":{"Port":20003,"port":10250}}`),
		"a directive":       status(list(first, own, `{"$patch":"merge"}`), port),
		"an order":          status(list(own, first), `"$setElementOrder/addresses":[{"type":"InternalIP"}]`, port),
		"addresses deleted": status(list(`{"$patch":"delete","type":"InternalIP"}`, first), port),
		"endpoints replaced": status(list(first),
			`"daemonEndpoints":{"$patch":"replace","kubeletEndpoint":{"Port":20003}}`),
		"the address alone": status(list(first)),
	}
}

// TestPortOfAnotherNode: whatever a node reports, it does not get the port of another node when the cloudcore of that
// port is started again, neither where it is connected nor at another one.
func TestPortOfAnotherNode(t *testing.T) {
	const here, elsewhere = "127.31.7.9", "127.31.7.10"
	for _, address := range []string{here, elsewhere} {
		for name, report := range thiefReports(address) {
			f := newFixture(t)
			f.Endpoints.SetTunnels(fakes.Ports{})
			f.Endpoints.SetCloudcores(func(a string) bool { return a == elsewhere })
			victim, thief := fakes.NodeAt(20003, address, "10.0.0.2"), fakes.NodeAt(20007, elsewhere, "10.0.0.9")
			for n, name := range map[*v1.Node]string{victim: "b", thief: "a"} {
				n.ObjectMeta = fakes.Node(name).ObjectMeta
			}
			var stored v1.Node
			f.add(victim, thief)
			f.api.Answer(func(r fakes.Call) (int, any) {
				if r.Method != http.MethodPatch {
					return fakes.NotFound(r.Path)
				}
				before, err := json.Marshal(thief)
				if err != nil {
					t.Error(err)
				}
				after, err := strategicpatch.StrategicMergePatch(before, []byte(r.Body), v1.Node{})
				if err == nil {
					err = kjson.Unmarshal(after, &stored)
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				return http.StatusOK, stored
			})
			f.ask("a", model.OpPatch, "default/nodepatch/a", report)
			if stored.Name == "" {
				t.Errorf("%s at %s: nothing was stored", name, address)
				continue
			}
			f.add(&stored)
			for _, at := range []string{here, elsewhere} {
				if port := f.Endpoints.TunnelPort("a", at); (fakes.Ports{}).Port(port) {
					t.Errorf("%s at %s: the node has port %d at %s, want none of the range", name, address, port, at)
				}
			}
			if port := f.Endpoints.TunnelPort("b", address); port != 20003 {
				t.Errorf("%s at %s: the other node has port %d, want 20003", name, address, port)
			}
		}
	}
}
