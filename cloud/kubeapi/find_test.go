package kubeapi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestFind: the flag, cloudcore's configuration, the pod, kubectl's configuration - in this order.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	at := func(host string) string { return strings.Replace(kubeconfigFile, "192.0.2.1", host, 1) }
	flag, own, kubectls := write("flag", at("flag")), write("own", at("own")), write("kubectls", at("kubectls"))
	const head = "apiVersion: cloudcore.config.kubeedge.io/v1alpha1\nkind: CloudCore\n"
	const hub = "modules: {cloudHub: {advertiseAddress: [192.0.2.1]}}\n"
	configured := write("configured.yaml", head+hub+"kubeAPIConfig: {kubeConfig: "+own+"}\n")
	silent := write("silent.yaml", head+hub)
	bad := write("bad.yaml", head+"x: 1\n")
	pod := func() (*rest.Config, error) { return &rest.Config{Host: "pod"}, nil }
	noPod := func() (*rest.Config, error) { return nil, rest.ErrNotInCluster }
	none := filepath.Join(dir, "none")
	for name, tc := range map[string]struct {
		flag, config, env string
		inCluster         func() (*rest.Config, error)
		host, err         string
	}{
		"the flag":           {flag, configured, kubectls, pod, "https://flag:6443", ""},
		"a wrong flag":       {none, configured, kubectls, pod, "", "--kube-config " + none},
		"the configuration":  {"", configured, kubectls, pod, "https://own:6443", ""},
		"one that is wrong":  {"", bad, kubectls, pod, "", "x: no such key"},
		"the pod":            {"", silent, kubectls, pod, "pod", ""},
		"kubectl's":          {"", silent, kubectls, noPod, "https://kubectls:6443", ""},
		"no configuration":   {"", none, kubectls, noPod, "https://kubectls:6443", ""},
		"nothing helps here": {"", none, none, noPod, "", "give --kube-config FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tc.env)
			rc, err := Find(tc.flag, tc.config, tc.inCluster)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || rc.Host != tc.host {
				t.Errorf("%v, %v; want %s", rc, err, tc.host)
			}
		})
	}
}
