package adopt

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

var here = Paths{
	Store:    "/var/lib/edgecore/edgecore.db",
	Certs:    "/etc/edgecore/certs",
	Root:     "/var/lib/edged",
	NodeName: "edge1",
	Joined:   true,
}

// TestTranslateWhole takes the files that KubeEdge itself prints, with all of its keys: nothing of theirs is refused,
// and what becomes of the pods' places is theirs.
func TestTranslateWhole(t *testing.T) {
	for _, version := range []string{"1.13", "1.23"} {
		t.Run(version, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("../../pkg/apis/edgecore/v1alpha2/testdata",
				"kubeedge-v"+version+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			before, err := Before(text)
			if err != nil {
				t.Fatal(err)
			}
			c, err := Translate(text, here)
			if err != nil {
				t.Fatal(err)
			}
			again, _, err := v1alpha2.Parse(c.Text)
			if err != nil {
				t.Fatalf("the file that was made: %v, want no error\n%s", err, c.Text)
			}
			if diff := cmp.Diff(c.EdgeCore, again); diff != "" {
				t.Errorf("what was checked and what was written mismatch (-checked +written):\n%s", diff)
			}
			if again.Database.DataSource != here.Store ||
				again.Modules.EdgeHub.TLSCertFile != "/etc/edgecore/certs/server.crt" {
				t.Errorf("our own places: %s, %s; want %s, /etc/edgecore/certs/server.crt",
					again.Database.DataSource, again.Modules.EdgeHub.TLSCertFile, here.Store)
			}
			was, is := before.Modules.Edged, again.Modules.Edged
			for what, pair := range map[string][2]string{
				"root":   {was.RootDirectory, is.RootDirectory},
				"name":   {was.HostnameOverride, is.HostnameOverride},
				"driver": {was.TailoredKubeletConfig.CgroupDriver, is.TailoredKubeletConfig.CgroupDriver},
				"endpoint": {
					was.TailoredKubeletConfig.ContainerRuntimeEndpoint,
					is.TailoredKubeletConfig.ContainerRuntimeEndpoint,
				},
				"static": {was.TailoredKubeletConfig.StaticPodPath, is.TailoredKubeletConfig.StaticPodPath},
			} {
				if pair[0] != pair[1] {
					t.Errorf("%s is %q, want %q as before", what, pair[1], pair[0])
				}
			}
			// KubeEdge's files have keys that this version does not act on: that is said.
			if len(c.Notes) == 0 {
				t.Error("no notes, want one on each key that this version does not act on")
			}
		})
	}
}

const head = "apiVersion: edgecore.config.kubeedge.io/v1alpha2\nkind: EdgeCore\n"

func TestTranslate(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		notes []Note
		check func(*v1alpha2.EdgeCore) bool
	}{
		"what a file leaves out is as KubeEdge has it": {
			text: head,
			check: func(c *v1alpha2.EdgeCore) bool {
				e := &c.Modules.Edged
				return e.RootDirectory == "/var/lib/edged" && !e.ReportEvent && e.HostnameOverride == "edge1" &&
					e.TailoredKubeletConfig.ReadOnlyPort == 10350
			},
		},
		"what it says stays": {
			text: head + "modules:\n  edged:\n    rootDirectory: /data/kubelet\n    reportEvent: true\n    " +
				"tailoredKubeletConfig:\n      readOnlyPort: 10255\n      cgroupDriver: systemd\n",
			check: func(c *v1alpha2.EdgeCore) bool {
				e := &c.Modules.Edged
				return e.RootDirectory == "/data/kubelet" && e.ReportEvent &&
					e.TailoredKubeletConfig.ReadOnlyPort == 10255 && e.TailoredKubeletConfig.CgroupDriver == "systemd"
			},
		},
		"a key that nobody knows is left out": {
			text: head + "modules:\n  metaManager:\n    metaServer:\n      autonomyWithoutAuthorization: true\n  " +
				"edged:\n    nodeLabels:\n      example.com/zone: hall-2\n    enableMetrics: true\n",
			notes: []Note{
				{"modules.edged.enableMetrics", "left out: this version has no such key"},
				{"modules.metaManager.metaServer.autonomyWithoutAuthorization", "left out: "},
			},
			check: func(c *v1alpha2.EdgeCore) bool {
				return c.Modules.Edged.NodeLabels["example.com/zone"] == "hall-2"
			},
		},
		"a value that is not allowed is left out": {
			text: head + "modules:\n  edged:\n    tailoredKubeletConfig:\n      maxPods: many\n      " +
				"evictionHard:\n        memory.available: lots\n        nodefs.available: 10%\n",
			notes: []Note{
				{"modules.edged.tailoredKubeletConfig.maxPods", "left out: "},
				{"modules.edged.tailoredKubeletConfig.evictionHard[memory.available]", "left out: "},
			},
			check: func(c *v1alpha2.EdgeCore) bool {
				k := &c.Modules.Edged.TailoredKubeletConfig
				return k.MaxPods == 110 && k.EvictionHard["nodefs.available"] == "10%"
			},
		},
		"the endpoint of old versions moves": {
			text: head + "modules:\n  edged:\n    containerRuntime: remote\n    remoteRuntimeEndpoint: " +
				"unix:///run/crio/crio.sock\n",
			notes: []Note{{"modules.edged.remoteRuntimeEndpoint", "the earlier name of "}},
			check: func(c *v1alpha2.EdgeCore) bool {
				return c.Modules.Edged.TailoredKubeletConfig.ContainerRuntimeEndpoint == "unix:///run/crio/crio.sock"
			},
		},
		"a spent token goes": {
			text:  head + "modules:\n  edgeHub:\n    token: abc\n",
			check: func(c *v1alpha2.EdgeCore) bool { return c.Modules.EdgeHub.Token == "" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Translate([]byte(test.text), here)
			if err != nil {
				t.Fatal(err)
			}
			if !test.check(c.EdgeCore) {
				t.Errorf("check(Translate(...)) = false, want true; the configuration is\n%s", c.Text)
			}
			for _, want := range test.notes {
				if !slices.ContainsFunc(c.Notes, func(n Note) bool {
					return n.Key == want.Key && strings.HasPrefix(n.Text, want.Text)
				}) {
					t.Errorf("no note %q among %q", want, c.Notes)
				}
			}
			if len(test.notes) != len(c.Notes) {
				t.Errorf("notes %q, want %q", c.Notes, test.notes)
			}
		})
	}
}

func TestTranslateRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"- a":                            "not a YAML mapping",
		"kind: EdgeCore\napiVersion: v1": "apiVersion",
		head + "modules:\n  edged:\n    " +
			"enable: false": "ran no pods",
		head + "modules:\n  edged:\n    containerRuntime: " +
			"docker": "dockershim",
		head + "modules:\n  edged:\n    remoteRuntimeEndpoint: " +
			"unix:///var/run/dockershim.sock": "dockershim",
		head + "modules:\n  edged:\n    tailoredKubeletConfig:\n      " +
			"cgroupDriver: none": "cgroupDriver",
		head + "modules:\n  edged:\n    tailoredKubeletConfig:\n      containerRuntimeEndpoint: " +
			"tcp://127.0.0.1:1": "containerRuntimeEndpoint",
		head + "modules:\n  edged:\n    rootDirectory: " +
			"var/lib/kubelet": "rootDirectory",
		head + "modules:\n  " +
			"edged: 7": "",
		"apiVersion: edgecore.config.kubeedge.io/v1alpha1\nkind: EdgeCore\nmodules:\n  edged:\n    " +
			"hostnameOverride: edge1": "before 1.12",
	} {
		c, err := Translate([]byte(text), here)
		if want == "" { // what is no mapping is taken for one that says nothing
			if err != nil {
				t.Errorf("Translate(%q): %v, want no error", text, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v; want an error with %q", text, c, err, want)
		}
	}
}

func FuzzTranslate(f *testing.F) {
	f.Add(head)
	f.Add(head + "modules: " + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000))
	f.Add(head + "modules: [" + strings.Repeat("{},", 5_000) + "]")
	f.Add(head + "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n" +
		"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nmodules: [*e,*e,*e,*e,*e,*e,*e,*e]\n")
	f.Add(head +
		"modules:\n  edged:\n    nodeLabels:\n      a.b/c: \"1\"\n    x[y]: 1\n  edgeHub:\n    websocket: []\n")
	f.Fuzz(func(t *testing.T, text string) {
		var c *Config
		var err error
		// Each byte may become a node of YAML, of which the file, its JSON and the configuration are made.
		membound.Check(t, 8<<20+membound.Linear(len(text), 4<<10), func() { c, err = Translate([]byte(text), here) })
		if err != nil {
			return
		}
		if _, _, err := v1alpha2.Parse(c.Text); err != nil {
			t.Errorf("the file that was made: %v, want no error", err)
		}
	})
}
