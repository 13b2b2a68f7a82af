package v1alpha1

import (
	"fmt"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// Minimal returns a file with the keys that a new cloudcore most likely sets, each with a short comment. All others
// keep their defaults.
func Minimal() []byte {
	hub := &Default().Modules.CloudHub
	return fmt.Appendf(nil,
		`# cloudcore's configuration. Each key that is left out has its default; `+"`cloudcore --defaultconfig`"+
			` prints
# them all, and `+"`cloudcore config validate FILE`"+` checks a file.
apiVersion: %s
kind: %s
kubeAPIConfig:
  # The way to kube-apiserver. Without a kubeconfig cloudcore takes the service account of the pod it runs in.
  kubeConfig: ""
commonConfig:
  monitorServer:
    # Where /metrics, /healthz and /readyz answer. They ask for no password: keep them on this host.
    bindAddress: %s
modules:
  cloudHub:
    # How many edges may be connected to this cloudcore at a time.
    nodeLimit: %d
    # The addresses and names at which edges reach cloudcore: its certificate is made for them.
    advertiseAddress:
    - %s
    dnsNames:
    - ""
    # Where edges connect.
    websocket:
      enable: true
      address: %s
      port: %d
    # Where edges join and renew their certificates.
    https:
      enable: true
      address: %s
      port: %d
`, APIVersion, Kind, DefaultMonitorBind, hub.NodeLimit, hub.AdvertiseAddress[0], hub.WebSocket.Address,
		hub.WebSocket.Port, hub.HTTPS.Address, hub.HTTPS.Port)
}

// Redacted returns a copy without secrets: a password in the URL of kube-apiserver.
func (c *CloudCore) Redacted() *CloudCore {
	out := *c
	out.KubeAPIConfig.Master = strict.WithoutPassword(c.KubeAPIConfig.Master)
	return &out
}
