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
		"set": "modules:\n  edgeHub: {token: hunter2}\n  eventBus: {mqttPassword: hunter2, mqttPubClientID: a}\n",
		"a header": "modules: {edged: {tailoredKubeletConfig: {staticPodURLHeader: {Authorization: [Basic " +
			"hunter2]}}}}\n",
		"a URL": "modules: {eventBus: {enable: true, mqttMode: 1, " +
			"mqttServerExternal: 'tcp://user:hunter2@host:1883', " +
			"mqttServerInternal: 'tcp://user:a/hunter2@host'}}\n",
		"of a bad type": "modules: {edgeHub: {token: [hunter2]}, eventBus: {mqttPassword: {hunter2: 1}}}\n",
		"a bad header": "modules: {edged: {tailoredKubeletConfig: {staticPodURLHeader: {Authorization: " +
			"hunter2}}}}\n",
		"misspelt":           "modules: {edgeHub: {tokenn: hunter2}, eventBus: {mqttPasword: hunter2}}\n",
		"misplaced":          "token: hunter2\n",
		"twice":              "modules:\n  edgeHub:\n    token: hunter2\n    token: hunter2\n",
		"beside a bad value": "modules: {edgeHub: {token: hunter2, heartbeat: x}}\n",
		"in a server":        "modules: {edgeHub: {websocket: {server: 'wss://user:hunter2@host'}}}\n",
		"a broken file":      "modules:\n  edgeHub:\n    token: hunter2\n   heartbeat: [\n",
	} {
		t.Run(name, func(t *testing.T) {
			cfg, warnings, err := Parse([]byte(head + text))
			output := strings.Join(warnings, "\n")
			if err != nil {
				output += err.Error()
			}
			if output == "" {
				t.Error("no error and no warning, want one of them")
			}
			if cfg != nil {
				data, err := yaml.Marshal(cfg.Redacted())
				if err != nil {
					t.Fatal(err)
				}
				output += string(data)
			}
			if strings.Contains(output, secret) {
				t.Errorf("said %s, want it without the secret %s", output, secret)
			}
		})
	}
}

func TestRedactedIsACopy(t *testing.T) {
	e := Default()
	e.Modules.EdgeHub.Token = secret
	e.Modules.Edged.TailoredKubeletConfig.StaticPodURLHeader = map[string][]string{"Authorization": {secret}}
	out := e.Redacted()
	header := e.Modules.Edged.TailoredKubeletConfig.StaticPodURLHeader["Authorization"][0]
	if e.Modules.EdgeHub.Token != secret || header != secret {
		t.Errorf("token %q and header %q of the configuration itself, want %q in both", e.Modules.EdgeHub.Token, header,
			secret)
	}
	if out.Modules.EdgeHub.Token == secret || out.Modules.EventBus.MqttPassword != "" {
		t.Errorf("shown: token %q, MQTT password %q; want the first hidden and the second empty",
			out.Modules.EdgeHub.Token, out.Modules.EventBus.MqttPassword)
	}
}
