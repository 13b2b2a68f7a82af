package v1alpha2

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const secret = "hunter2"

// TestSecretsAreNotShown: neither an error nor a warning nor the printed configuration holds a secret,
// wherever in the file it stands.
func TestSecretsAreNotShown(t *testing.T) {
	for name, text := range map[string]string{
		"set":                "modules:\n  edgeHub: {token: hunter2}\n  eventBus: {mqttPassword: hunter2}\n",
		"a header":           "modules: {edged: {tailoredKubeletConfig: {staticPodURLHeader: {Authorization: [Basic hunter2]}}}}\n",
		"a URL":              "modules: {eventBus: {mqttServerExternal: 'tcp://user:hunter2@host:1883', mqttServerInternal: 'tcp://user:a/hunter2@host'}}\n",
		"of a bad type":      "modules: {edgeHub: {token: [hunter2]}, eventBus: {mqttPassword: {hunter2: 1}}}\n",
		"a bad header":       "modules: {edged: {tailoredKubeletConfig: {staticPodURLHeader: {Authorization: hunter2}}}}\n",
		"misspelt":           "modules: {edgeHub: {tokenn: hunter2}, eventBus: {mqttPasword: hunter2}}\n",
		"misplaced":          "token: hunter2\n",
		"twice":              "modules:\n  edgeHub:\n    token: hunter2\n    token: hunter2\n",
		"beside a bad value": "modules: {edgeHub: {token: hunter2, heartbeat: x}}\n",
		"in a server":        "modules: {edgeHub: {websocket: {server: 'wss://user:hunter2@host'}}}\n",
		"a broken file":      "modules:\n  edgeHub:\n    token: hunter2\n   heartbeat: [\n",
	} {
		t.Run(name, func(t *testing.T) {
			cfg, warnings, err := Parse([]byte(head + text))
			said := strings.Join(warnings, "\n")
			if err != nil {
				said += err.Error()
			}
			if said == "" {
				t.Error("neither an error nor a warning")
			}
			if cfg != nil {
				data, err := yaml.Marshal(cfg.Redacted())
				if err != nil {
					t.Fatal(err)
				}
				said += string(data)
			}
			if strings.Contains(said, secret) {
				t.Errorf("the secret is in: %s", said)
			}
		})
	}
}

func TestRedactedIsACopy(t *testing.T) {
	e := Default()
	e.Modules.EdgeHub.Token = secret
	e.Modules.Edged.TailoredKubeletConfig.StaticPodURLHeader = map[string][]string{"Authorization": {secret}}
	out := e.Redacted()
	if e.Modules.EdgeHub.Token != secret || e.Modules.Edged.TailoredKubeletConfig.StaticPodURLHeader["Authorization"][0] != secret {
		t.Error("the configuration itself has lost its secrets")
	}
	if out.Modules.EdgeHub.Token == secret || out.Modules.EventBus.MqttPassword != "" {
		t.Error("a secret is shown, or an empty one is said to be there")
	}
}
