package wire

import (
	"encoding/json"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// The inventory that our edgecore sends after connecting, if Inventory is agreed.
const (
	OpInventory       = "inventory"
	ResourceInventory = "null/inventory"
)

// Held is an object in the edge's store.
type Held struct {
	// Key is the resource, as "default/pod/web".
	Key string `json:"k"`
	UID string `json:"u"`
	// Version is what Version says of it.
	Version string `json:"v"`
	// Status is, for a pod, the StatusHash of the node's last report, or StatusPending while a newer status waits to be
	// sent. It is empty if the node has reported none, and from edgecore before this field existed.
	Status string `json:"s,omitempty"`
}

// Inventory is everything that an edge holds.
type Inventory struct {
	Objects []Held `json:"objects"`
}

// Synced is the content of the cloud's answer: every difference was sent, and acknowledged.
type Synced struct {
	Synced bool `json:"synced"`
	// Report names the pods, as in Held.Key, whose status at the API server is not the node's last report: it was lost,
	// or someone else wrote it. The node reports them again.
	Report []string `json:"report,omitempty"`
}

// NewInventory makes the inventory message.
func NewInventory(objects []Held) (*model.Message, error) {
	if objects == nil {
		objects = []Held{}
	}
	content, err := json.Marshal(Inventory{Objects: objects})
	if err != nil {
		return nil, fmt.Errorf("encode the inventory: %w", err)
	}
	return model.New(model.ModuleMetaManager, model.GroupResource, OpInventory, ResourceInventory, content), nil
}

// IsInventory reports whether a message is one of NewInventory.
func IsInventory(m *model.Message) bool {
	return m.Route.Operation == OpInventory && m.Route.Resource == ResourceInventory
}

// The message that edgehub sends to the groups "meta" and "twin" when the link connects or disconnects.
const (
	OpConnect    = "connect"
	ResourceLink = "null/link"
)

// LinkState is the content of such a message.
type LinkState struct {
	Connected bool     `json:"connected"`
	Features  Features `json:"features"`
}
