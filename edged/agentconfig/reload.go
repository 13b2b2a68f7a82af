package agentconfig

import (
	"fmt"

	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// Pods is the part that runs pods; see edged.Module.
type Pods interface {
	Reload(settings options.Settings)
}

// Link is the link to the cloud; see edgehub.Module.
type Link interface {
	// Configure applies a section, or returns an error and keeps the one before.
	Configure(section v1alpha2.EdgeHub) error
}

// Reloader hands a changed configuration to the parts that can apply it while they run. Its method may be called from
// one goroutine at a time.
type Reloader struct {
	pods Pods
	link Link
	// started is the section that the link started with, current the one that it has.
	started, current v1alpha2.EdgeHub
}

// NewReloader returns a reloader for parts that started with a configuration. Either part may be nil.
func NewReloader(started *v1alpha2.EdgeCore, pods Pods, link Link) *Reloader {
	return &Reloader{pods: pods, link: link, started: started.Modules.EdgeHub, current: started.Modules.EdgeHub}
}

// Apply hands the next configuration to the parts. After an error the pods' settings are as before.
func (r *Reloader) Apply(next *v1alpha2.EdgeCore) error {
	var settings options.Settings
	if r.pods != nil {
		opts, err := EdgedOptions(next)
		if err != nil {
			return err
		}
		settings = opts.Settings()
	}
	if section := linkSettings(r.started, next.Modules.EdgeHub); r.link != nil && section != r.current {
		if err := r.link.Configure(section); err != nil {
			return fmt.Errorf("link to the cloud: %w", err)
		}
		r.current = section
	}
	if r.pods != nil {
		r.pods.Reload(settings)
	}
	return nil
}

// linkSettings returns the section that the link started with, with the keys of next that it can apply while it runs.
func linkSettings(started, next v1alpha2.EdgeHub) v1alpha2.EdgeHub {
	started.Heartbeat, started.ProjectID = next.Heartbeat, next.ProjectID
	started.MessageQPS, started.MessageBurst = next.MessageQPS, next.MessageBurst
	started.WebSocket, started.Quic = next.WebSocket, next.Quic
	return started
}
