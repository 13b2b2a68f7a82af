package agentconfig

import (
	"reflect"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// TestLiveKeysChangeSomething: a key that is said to be acted on changes what the agent is built with. This
// keeps the table of keys true: to name one there without acting on it fails here.
func TestLiveKeysChangeSomething(t *testing.T) {
	// These are seen elsewhere: by the wiring in cmd/edgecore itself, or by nobody because there is nothing to choose.
	elsewhere := map[string]bool{
		"apiVersion":                                 true,
		"kind":                                       true,
		"edgecoreVersion":                            true,
		"database.driverName":                        true,
		"database.aliasName":                         true,
		kubeletKeys + "apiVersion":                   true,
		kubeletKeys + "kind":                         true,
		kubeletKeys + "oomScoreAdj":                  true,
		"modules.edged.enable":                       true,
		"modules.metaManager.enable":                 true,
		"modules.metaManager.remoteQueryTimeout":     true,
		"modules.metaManager.metaServer.enable":      true,
		"modules.metaManager.metaServer.server":      true,
		"modules.metaManager.metaServer.dummyServer": true,
		"modules.metaManager.metaServer.podAccess":   true,
		"modules.deviceTwin.enable":                  true,
		"modules.deviceTwin.dmiSockPath":             true,
		"modules.deviceTwin.dmiSockGroup":            true,
		"modules.edgeStream.enable":                  true,
		"modules.edgeStream.server":                  true,
	}
	base, err := EdgedOptions(v1alpha2.Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range v1alpha2.LiveKeys() {
		// edgehub and eventbus take their sections as they are
		if elsewhere[key] || strings.HasPrefix(key, "modules.edgeHub.") && key != "modules.edgeHub.enable" ||
			strings.HasPrefix(key, "modules.eventBus.") {
			continue
		}
		cfg, changes := changing(t, key)
		if cfg == nil {
			continue
		}
		opts, err := EdgedOptions(cfg)
		if err != nil {
			t.Errorf("%s: %v", key, err)
		} else if reflect.DeepEqual(base, opts) {
			t.Errorf("%s: %v changes nothing, want a change: the key is among the live keys", key, changes)
		}
	}
}
