package source

import (
	"strings"
	"testing"
)

// TestAPIReferences: a pod that the API server takes no mirror pod for runs with a warning that says so.
func TestAPIReferences(t *testing.T) {
	volume := func(source string) string { return "  volumes: [{name: v, " + source + "}]\n" }
	env := func(from string) string { return "    env: [{name: A, valueFrom: {" + from + "}}]\n" }
	for more, want := range map[string]string{
		"  serviceAccountName: s\n":                                                    "a ServiceAccount",
		"  imagePullSecrets: [{name: s}]\n":                                            "a Secret",
		volume("secret: {secretName: s}"):                                              "a Secret",
		volume("configMap: {name: s}"):                                                 "a ConfigMap",
		volume("persistentVolumeClaim: {claimName: s}"):                                "a PersistentVolumeClaim",
		volume("csi: {driver: d.example.com}"):                                         "a CSIDriver",
		volume("projected: {sources: [{configMap: {name: s}}]}"):                       "a ConfigMap",
		volume("projected: {sources: [{downwardAPI: {}}, {secret: {name: s}}]}"):       "a Secret",
		volume("projected: {sources: [{serviceAccountToken: {path: t}}]}"):             "a ServiceAccount",
		env("secretKeyRef: {name: s, key: k}"):                                         "a Secret",
		env("configMapKeyRef: {name: s, key: k}"):                                      "a ConfigMap",
		"    envFrom: [{configMapRef: {name: s}}]\n":                                   "a ConfigMap",
		"  initContainers: [{name: i, image: i, envFrom: [{secretRef: {name: s}}]}]\n": "a Secret",
		env("fieldRef: {fieldPath: metadata.name}") + volume("emptyDir: {}"):           "",
		volume("projected: {sources: [{downwardAPI: {}}]}"):                            "",
		"  serviceAccountName: ''\n":                                                   "",
	} {
		_, warnings, err := Decode([]byte(web+more), "n")
		got := strings.Join(warnings, "\n")
		if err != nil || (want == "") != (got == "") || !strings.Contains(got, "refers to "+want) && want != "" {
			t.Errorf("%s: warnings %q, %v; want one that it refers to %q", more, got, err, want)
		}
	}
}
