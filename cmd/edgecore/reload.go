package main

import (
	"fmt"

	"github.com/edgecore-io/edgecore/edged"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// takeOver hands a changed configuration to the parts that can take it over; either may be missing.
func takeOver(pods *edged.Module, hub *link, started *v1alpha2.EdgeCore) func(*v1alpha2.EdgeCore) error {
	before := started.Modules.EdgeHub
	return func(next *v1alpha2.EdgeCore) error {
		var settings edged.Settings
		if pods != nil {
			opts, err := edgedOptions(next)
			if err != nil {
				return err
			}
			settings = opts.Settings()
		}
		if section := linkSettings(started.Modules.EdgeHub, next.Modules.EdgeHub); hub != nil && section != before {
			if err := hub.Configure(section); err != nil {
				return fmt.Errorf("link to the cloud: %w", err)
			}
			before = section
		}
		if pods != nil {
			pods.Reload(settings)
		}
		return nil
	}
}

// linkSettings is a section with those keys of another that a link takes over while it runs.
func linkSettings(started, next v1alpha2.EdgeHub) v1alpha2.EdgeHub {
	started.Heartbeat, started.MessageQPS, started.MessageBurst, started.ProjectID = next.Heartbeat, next.MessageQPS, next.MessageBurst, next.ProjectID
	started.WebSocket, started.Quic = next.WebSocket, next.Quic
	return started
}
