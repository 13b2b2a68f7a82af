package cloudconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/cloudstream"
	"github.com/edgecore-io/edgecore/cloud/devicecontroller"
	"github.com/edgecore-io/edgecore/cloud/kubeapi"
	"github.com/edgecore-io/edgecore/cloud/nodeidentity"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// built is what the parts are built with.
type built struct {
	Host, ContentType string
	QPS               float32
	Burst             int
	Certificates      certificates.Options
	Hub               cloudhub.Options
	Guard             nodeidentity.Options
	Devices           devicecontroller.Options
	Stream            cloudstream.Options
}

func buildWith(t *testing.T, cfg *v1alpha1.CloudCore) built {
	t.Helper()
	rc, err := kubeapi.Config(&cfg.KubeAPIConfig, func() (*rest.Config, error) { return &rest.Config{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	hub := &cfg.Modules.CloudHub
	return built{
		rc.Host, rc.ContentType, rc.QPS, rc.Burst, CertificateOptions(hub), HubOptions(hub), GuardOptions(hub),
		DeviceOptions(&cfg.Modules.DeviceController), StreamOptions(&cfg.Modules.CloudStream, "192.0.2.1"),
	}
}

// TestLiveKeysChangeSomething: a key that is said to be acted on changes what cloudcore is built with. This keeps the
// table of live keys true: to name one there without acting on it fails here.
func TestLiveKeysChangeSomething(t *testing.T) {
	const hub = "modules.cloudHub."
	// These are seen elsewhere: by the servers and kubeapi, whose tests use them, or by nobody because there is nothing
	// to choose.
	elsewhere := map[string]bool{
		"apiVersion": true, "kind": true, "modules.edgeController.enable": true, hub + "enable": true,
		"modules.deviceController.enable": true, "modules.cloudStream.enable": true,
		"modules.dynamicController.enable":           true,
		"modules.cloudStream.tunnelPort":             true,
		"commonConfig.monitorServer.bindAddress":     true,
		"commonConfig.monitorServer.enableProfiling": true,
		"kubeAPIConfig.kubeConfig":                   true,
	}
	for _, server := range []string{"websocket", "https", "quic", "unixsocket"} {
		for _, key := range []string{".enable", ".address", ".port"} {
			elsewhere[hub+server+key] = true
		}
	}
	settings := map[string][]string{
		"kubeAPIConfig.master":                         {"https://192.0.2.9"},
		"kubeAPIConfig.contentType":                    {"application/json"},
		"kubeAPIConfig.qps":                            {"17"},
		"kubeAPIConfig.burst":                          {"17"},
		"modules.deviceController.statusInterval":      {"17"},
		"modules.deviceController.statusWritesPerNode": {"17"},
		"modules.cloudStream.tunnel":                   {"auto"},
		"modules.cloudStream.address":                  {"192.0.2.9"},
		"modules.cloudStream.listenAddress":            {"192.0.2.9"},
		"modules.cloudStream.firstPort":                {"17"},
		"modules.cloudStream.lastPort":                 {"31000"},
		"modules.cloudStream.streamsPerNode":           {"17"},
		"modules.cloudStream.bytesPerSecondPerNode":    {"17"},
		hub + "keepaliveInterval":                      {"17"},
		hub + "nodeLimit":                              {"17"},
		hub + "writeTimeout":                           {"17"},
		hub + "advertiseAddress":                       {"[192.0.2.9]"},
		hub + "dnsNames":                               {"[other.example.com]"},
		hub + "tlsCAFile":                              {"/other"},
		hub + "tlsCAKeyFile":                           {"/other"},
		hub + "tlsCertFile":                            {"/other"},
		hub + "tlsPrivateKeyFile":                      {"/other"},
		hub + "edgeCertSigningDuration":                {"17"},
		hub + "tokenRefreshDuration":                   {"17"},
		hub + "legacyCertificates":                     {"true"},
		hub + "lookupsPerSource":                       {"17"},
	}
	base := buildWith(t, v1alpha1.Default())
	for _, key := range v1alpha1.LiveKeys() {
		values, ok := settings[key]
		if elsewhere[key] {
			continue
		}
		if !ok {
			t.Errorf("no value here for %s, want one: it is among the live keys", key)
		}
		for _, value := range values {
			text := value
			for path := strict.Split(key); len(path) > 0; path = path[:len(path)-1] {
				text = "{" + path[len(path)-1] + ": " + text + "}"
			}
			cfg, warnings, err := v1alpha1.Load(writeConfig(t, text[1:len(text)-1]+"\n"))
			if err != nil || len(warnings) > 0 {
				t.Errorf("%s: Load = %v, warnings %v; want neither", key, err, warnings)
				continue
			}
			if reflect.DeepEqual(base, buildWith(t, cfg)) {
				t.Errorf("%s: %s changes nothing, want a change: the key is among the live keys", key, value)
			}
		}
	}
}

// writeConfig writes a configuration file with the given keys, and returns its path.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloudcore.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: "+v1alpha1.APIVersion+"\nkind: CloudCore\n"+text),
		0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
