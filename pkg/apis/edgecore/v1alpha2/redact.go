package v1alpha2

import (
	"maps"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// Redacted returns a copy without secrets: tokens, passwords, and request headers.
func (e *EdgeCore) Redacted() *EdgeCore {
	out := *e
	hub, bus, kubelet := &out.Modules.EdgeHub, &out.Modules.EventBus, &out.Modules.Edged.TailoredKubeletConfig
	for _, s := range []*string{&hub.Token, &bus.MqttPassword} {
		if *s != "" {
			*s = strict.Hidden
		}
	}
	for _, s := range []*string{
		&bus.MqttServerInternal, &bus.MqttServerExternal, &hub.HTTPServer, &kubelet.StaticPodURL,
	} {
		*s = strict.WithoutPassword(*s)
	}
	kubelet.StaticPodURLHeader = maps.Clone(kubelet.StaticPodURLHeader)
	for name := range kubelet.StaticPodURLHeader {
		kubelet.StaticPodURLHeader[name] = []string{strict.Hidden}
	}
	return &out
}
