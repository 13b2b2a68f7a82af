package cloudhub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Limits on a node's inventory. Kubernetes supports 10,000 services in a cluster, and nothing else that nodes hold is
// as numerous. Kubernetes' texts are shorter than these limits: a key has up to 390 bytes, a UID 36, a hash 43.
const (
	heldMax      = 20_000
	heldKeyMax   = 512
	heldTextMax  = 128
	heldPerToken = 20 // inventory entries that cost a node as much as one message
)

// inventoryContent is the content of a node's inventory.
type inventoryContent struct {
	Objects heldObjects `json:"objects"`
}

// heldObjects are the entries of an inventory. An inventory that exceeds the limits is not decoded in full: heldMax
// bounds the memory, not the size of the message.
type heldObjects []wire.Held

// errTooMuchHeld ends the session of a node whose inventory has too many entries.
var errTooMuchHeld = fmt.Errorf("it has more than %d objects", heldMax)

// UnmarshalJSON implements json.Unmarshaler.
func (l *heldObjects) UnmarshalJSON(data []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(data))
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil:
		return nil
	case t != json.Delim('['):
		return errors.New("objects is not a list")
	}
	for d.More() {
		if len(*l) == heldMax {
			return errTooMuchHeld
		}
		var o wire.Held
		if err := d.Decode(&o); err != nil {
			return err
		}
		if len(o.Key) > heldKeyMax || max(len(o.UID), len(o.Version), len(o.Status)) > heldTextMax {
			return fmt.Errorf("the entry of %q is too long", clipText(o.Key, 32))
		}
		*l = append(*l, o)
	}
	return nil
}

// clipText clips text that is sent, at a character boundary.
func clipText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "..."
}

// inventoried is what the queue and Upstream need from an inventory.
type inventoried struct {
	held map[resource.Key]queue.State // of the types that are pushed
	pods []wire.Held
	// entries counts all entries, nameless those that name no object. example is the key of a nameless one.
	entries, nameless int
	example           string
}

// readInventory decodes an inventory.
func (k *kinds) readInventory(content []byte) (*inventoried, error) {
	var c inventoryContent
	if err := json.Unmarshal(content, &c); err != nil {
		return nil, err
	}
	i := &inventoried{held: make(map[resource.Key]queue.State, len(c.Objects)), entries: len(c.Objects)}
	for _, o := range c.Objects {
		key, err := resource.Parse(o.Key)
		switch {
		case err != nil || key.Name == "":
			i.nameless++
			i.example = o.Key
			continue
		case !k.pushed(key.Type):
			continue // the node asked for it, and keeps it as long as it likes
		}
		i.held[key] = queue.State{UID: types.UID(o.UID), Version: o.Version}
		if key.Type == resource.TypePod {
			i.pods = append(i.pods, o)
		}
	}
	return i, nil
}

// takeInventory handles an edge's inventory. It returns how many messages it counts as.
func (s *session) takeInventory(m *model.Message) (cost int) {
	i, err := s.hub.kinds.readInventory(m.ContentData())
	if err != nil {
		s.closeLink(wire.CloseMalformed, "the inventory cannot be read: "+clipText(err.Error(), 80))
		return 1
	}
	if i.nameless > 0 {
		klog.V(2).InfoS("Entries of an inventory left out", "node", s.node, "entries", i.nameless, "one", i.example)
	}
	s.start(i.held, &inventoryReply{
		inventory: &model.Message{Header: m.Header, Route: m.Route},
		report:    s.hub.opts.Upstream.Inventoried(s.ctx, s.node, i.pods),
	})
	return 1 + i.entries/heldPerToken
}
