package cloudhub

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// inventoryOf makes the content of an inventory.
func inventoryOf(entries int, entry func(i int) string) string {
	var b strings.Builder
	b.WriteString(`{"objects":[`)
	for i := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(entry(i))
	}
	b.WriteString(`]}`)
	return b.String()
}

// TestInventoryBounds: an inventory with more than a node can hold ends the session with the reason.
func TestInventoryBounds(t *testing.T) {
	t.Parallel()
	pods := func(i int) string { return fmt.Sprintf(`{"k":"default/pod/p%d","u":"u%d","v":"a"}`, i, i) }
	long := strings.Repeat("x", 600)
	for name, tc := range map[string]struct{ content, want string }{
		"too many":        {inventoryOf(heldMax+1, pods), "it has more than 20000 objects"},
		"a long key":      {`{"objects":[{"k":"default/pod/` + long + `"}]}`, "is too long"},
		"a long uid":      {`{"objects":[{"k":"default/pod/a","u":"` + long + `"}]}`, "is too long"},
		"a long version":  {`{"objects":[{"k":"default/pod/a","v":"` + long + `"}]}`, "is too long"},
		"a long status":   {`{"objects":[{"k":"default/pod/a","s":"` + long + `"}]}`, "is too long"},
		"no list":         {`{"objects":{"k":"default/pod/a"}}`, "objects is not a list"},
		"a broken entry":  {`{"objects":[7]}`, "the inventory cannot be read"},
		"a list of lists": {`{"objects":[[]]}`, "the inventory cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := startInMemory(t, nil)
				conn := c.dialNode(t, "n1")
				defer conn.Close(wire.CloseNormal, "")
				m := model.New(model.ModuleMetaManager, model.GroupResource, wire.OpInventory, wire.ResourceInventory,
					json.RawMessage(tc.content))
				if err := conn.Write(m); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("the session ended with %v, want %q", err, tc.want)
				}
			})
		})
	}
}

// TestInventoryMemory: what an inventory takes does not follow from the entries that it claims to have.
func TestInventoryMemory(t *testing.T) { // not parallel: it counts allocations
	const limit = 32 << 20
	var k kinds
	for name, content := range map[string]string{
		"empty entries":   inventoryOf(400_000, func(int) string { return `{}` }),
		"nulls":           inventoryOf(400_000, func(int) string { return `null` }),
		"the same key":    inventoryOf(60_000, func(int) string { return `{"k":"default/pod/a"}` }),
		"repeated fields": `{"objects":[{` + strings.Repeat(`"k":"default/pod/a",`, 50_000) + `"u":"a"}]}`,
		"a long text":     `{"objects":[{"k":"` + strings.Repeat("x", 4<<20) + `"}]}`,
	} {
		if got := membound.Allocated(func() { _, _ = k.readInventory([]byte(content)) }); got > limit {
			t.Errorf("%s: %d bytes of content take %d bytes, want at most %d", name, len(content), got, limit)
		}
	}
}

// FuzzInventory: whatever a node says that it holds, reading it takes memory in proportion to its size.
func FuzzInventory(f *testing.F) {
	f.Add([]byte(`{"objects":[{"k":"default/pod/web","u":"u","v":"a","s":"pending"},{"k":"null/node/n1"},{"k":"x"}]}`))
	f.Add([]byte(`{"objects":[{},{},{},null]}`))
	f.Add([]byte(`{"objects":null,"objects":[[]]}`))
	f.Add([]byte(`[]`))
	var k kinds
	f.Fuzz(func(t *testing.T, content []byte) {
		limit := uint64(1<<20 + 256*len(content))
		var i *inventoried
		var err error
		if got := membound.Allocated(func() { i, err = k.readInventory(content) }); got > limit {
			t.Errorf("%d bytes of content take %d bytes, want at most %d", len(content), got, limit)
		}
		if err != nil {
			return
		}
		if len(i.held) > heldMax || len(i.pods) > i.entries || i.entries > heldMax {
			t.Errorf("%d objects and %d pods of %d entries, want at most %d", len(i.held), len(i.pods), i.entries,
				heldMax)
		}
		for key := range i.held {
			if key.Name == "" || !k.pushed(key.Type) {
				t.Errorf("held has %q, want names of types that are pushed", key.String())
			}
		}
	})
}

// FuzzReceived: whatever a message of a node says, finding out what it is and about which object takes memory in
// proportion to its size, and a request that is passed on has the form that its handler expects.
func FuzzReceived(f *testing.F) {
	for _, m := range []*model.Message{
		model.New("edged", model.GroupMeta, model.OpQuery, "default/pod/x", nil),
		model.New("edged", model.GroupResource, model.OpResponse, "default/pod/x", model.OK),
		model.New("edged", model.GroupResource, model.OpError, "default/pod/x", json.RawMessage(`"full"`)),
		model.New(model.ModuleMetaManager, model.GroupResource, wire.OpInventory, wire.ResourceInventory, nil),
		model.New("edged", model.GroupMeta, model.OpPatch, "default/podpatch/x", nil),
		model.New("websocket", model.GroupResource, model.OpKeepalive, "node", nil),
	} {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text []byte, ours bool) {
		var m model.Message
		if json.Unmarshal(text, &m) != nil {
			return
		}
		features := wire.Features{Inventory: ours}
		var what arrival
		var why, queue string
		limit := uint64(1<<20 + 64*len(text))
		if got := membound.Allocated(func() {
			what, why = classify(&m, features)
			queue = executorKey(&m)
		}); got > limit {
			t.Errorf("%d bytes take %d bytes, want at most %d", len(text), got, limit)
		}
		switch what {
		case dropped:
			if why == "" {
				t.Error("a message was dropped, want it said why")
			}
		case ack, nack, volume:
			if !m.IsResponse() {
				t.Errorf("an answer to no message is a %d, want it dropped", what)
			}
		case inventory:
			if !ours || !wire.IsInventory(&m) {
				t.Errorf("%s %s is an inventory, want that for those that were agreed", m.Route.Operation,
					m.Route.Resource)
			}
		case request:
			_, err := resource.Parse(m.Route.Resource)
			if err != nil || len(m.Route.Resource) > maxResource || m.Header.ID == "" || queue == "" {
				t.Errorf("a request with the id %q about %q (queue %q), want an id and an object",
					m.Header.ID, m.Route.Resource, queue)
			}
		}
	})
}
