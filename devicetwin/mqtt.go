package devicetwin

import (
	"time"

	"github.com/edgecore-io/edgecore/devicetwin/twin"
)

// mqttSession is what is known of the agent's session at an external MQTT broker.
type mqttSession struct {
	// used is set when there is one.
	used bool
	// behind is set while messages may wait in it.
	behind bool
}

// stampOf returns Ahead and Taken of something that comes now.
func (s *mqttSession) stampOf(from twin.Source) (ahead bool, at time.Time) {
	if !s.used || from != twin.FromNode {
		return false, time.Time{}
	}
	return s.behind, time.Now()
}

// MQTTBehind says that messages which were published after since may still wait at an MQTT broker. Updates that were
// applied after since are ahead of them.
func (m *Module) MQTTBehind(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mqtt = mqttSession{used: true, behind: true}
	for at, e := range m.devices {
		if e.twin.MarkAhead(since) {
			m.persist.mark(at) // a twin that does not change any more must have the mark after a crash, too
		}
	}
}

// MQTTCaughtUp says that no message waits at the broker any more.
func (m *Module) MQTTCaughtUp() {
	var marked []string
	m.mu.Lock()
	m.mqtt.behind = false
	for at, e := range m.devices {
		if e.twin.UnmarkAhead() {
			marked = append(marked, at)
		}
	}
	m.mu.Unlock()
	for _, at := range marked {
		m.persist.mark(at) // or a restart would find the marks of what was stored while the broker was away
	}
}
