package agentconfig

import (
	"path/filepath"

	"github.com/edgecore-io/edgecore/devicetwin/topics"
	"github.com/edgecore-io/edgecore/eventbus"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// NewEventBus makes the connection to MQTT that the configuration asks for. What waits for the external broker is in
// a file beside the store. conditions gets those of the broker in the agent and of the external one.
func NewEventBus(cfg *v1alpha2.EdgeCore, conditions *health.Registry) (eventbus.MQTT, error) {
	o := eventBusOptions(cfg)
	o.Listening = func(address string, err error) { conditions.SetError(health.SocketFailing, address, err) }
	o.Reachable = func(server string, err error) { conditions.SetError(health.MQTTBrokerUnreachable, server, err) }
	return eventbus.New(&cfg.Modules.EventBus, o)
}

func eventBusOptions(cfg *v1alpha2.EdgeCore) eventbus.Options {
	return eventbus.Options{
		SpoolPath:    filepath.Join(filepath.Dir(cfg.Database.DataSource), "mqtt.queue"),
		ClientID:     "edgecore-" + cfg.Modules.Edged.HostnameOverride,
		PasswordFile: cfg.Modules.EventBus.MqttPasswordFile,
		MayPublish:   topics.MayPublish,
	}
}
