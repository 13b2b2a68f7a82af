package systemd

import (
	"os"
	"strings"
	"testing"
)

func TestUnit(t *testing.T) {
	asPackaged, err := os.ReadFile(Name)
	if err != nil {
		t.Fatal(err)
	}
	if got := Unit("/usr/local/bin/edgecore", "/etc/kubeedge/config/edgecore.yaml"); got != string(asPackaged) {
		t.Errorf("with the default paths it is another:\n%s", got)
	}
	for want, paths := range map[string][2]string{
		"\nExecStart=/opt/e --config /c.yaml\n":             {"/opt/e", "/c.yaml"},
		"\nExecStart=\"/a b/e\" --config /100%%/$$c.yaml\n": {"/a b/e", "/100%/$c.yaml"},
		"\nExecStart=/e --config \"/\\\"c\\\\\"\n":          {"/e", `/"c\`},
	} {
		got := Unit(paths[0], paths[1])
		if !strings.Contains(got, want) {
			t.Errorf("%v: %q is not in\n%s", paths, want, got)
		}
		if !IsOurs(got) {
			t.Errorf("%v: not known as ours", paths)
		}
	}
	for _, want := range []string{"KillMode=process", "Restart=always", "WantedBy=multi-user.target"} {
		if !strings.Contains(string(asPackaged), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if IsOurs("[Unit]\nDescription=edgecore.service\n") {
		t.Error("KubeEdge's unit is taken for ours")
	}
}
