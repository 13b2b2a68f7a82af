package agentconfig

import (
	"path/filepath"

	"github.com/edgecore-io/edgecore/devicetwin/topics"
	"github.com/edgecore-io/edgecore/eventbus"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// NewEventBus makes the connection to MQTT that the configuration asks for. What waits for the external broker is in
// a file beside the store. listening is called when the broker in the agent cannot listen, with the error, and when it
// does.
func NewEventBus(cfg *v1alpha2.EdgeCore, listening func(address string, err error)) (eventbus.Bus, error) {
	return eventbus.New(&cfg.Modules.EventBus, eventbus.Options{
		SpoolPath:    filepath.Join(filepath.Dir(cfg.Database.DataSource), "mqtt.queue"),
		ClientID:     "edgecore-" + cfg.Modules.Edged.HostnameOverride,
		PasswordFile: cfg.Modules.EventBus.MqttPasswordFile,
		MayPublish:   topics.MayPublish,
		Listening:    listening,
	})
}
