package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func TestPrintImages(t *testing.T) {
	list := []imagegc.Image{
		{ID: "sha256:0123456789abcdef", Names: []string{"example.com/a:1", "example.com/a@sha256:ff"}, Size: 3 << 20, Needed: imagegc.NeededByPod},
		{ID: "sha256:ab", Size: 512, Pinned: true},
	}
	usage := imagegc.Usage{Mountpoint: "/var/lib/containerd", Capacity: 100 << 20, Available: 25 << 20}
	for form, want := range map[string]string{
		"": `IMAGE             IMAGE ID        SIZE      NEEDED BY
example.com/a:1   0123456789abc   3.0 MiB   pod
sha256:ab         ab              512 B     pinned

/var/lib/containerd is 75% full: 25.0 MiB of 100.0 MiB are free.
`,
		"name": "example.com/a:1\nsha256:ab\n",
		"json": `[
    {
        "id": "sha256:0123456789abcdef",
        "names": [
            "example.com/a:1",
            "example.com/a@sha256:ff"
        ],
        "size": 3145728,
        "pinned": false,
        "neededBy": "pod"
    },
    {
        "id": "sha256:ab",
        "names": null,
        "size": 512,
        "pinned": true
    }
]
`,
	} {
		var out bytes.Buffer
		if err := printImages(&out, list, usage, form); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("-o %s (-want +got):\n%s", form, diff)
		}
	}
	if err := printImages(&bytes.Buffer{}, list, usage, "xml"); err == nil {
		t.Error("printImages with -o xml = nil, want an error")
	}
}

func TestAuthOf(t *testing.T) {
	if secrets, err := authOf(""); err != nil || secrets != nil {
		t.Errorf("authOf returned %v, %v; want none", secrets, err)
	}
	file := filepath.Join(t.TempDir(), "config.json")
	if _, err := authOf(file); err == nil {
		t.Errorf("authOf(%s) = nil, want an error: there is no such file", file)
	}
	if err := os.WriteFile(file, []byte(`{"auths":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if secrets, err := authOf(file); err != nil || len(secrets) != 1 {
		t.Errorf("authOf returned %v, %v; want one", secrets, err)
	}
}

// TestImagesWithoutRuntime: a runtime that is down is named, with what to do.
func TestImagesWithoutRuntime(t *testing.T) {
	config := writeConfig(t, "modules: {edged: {rootDirectory: "+t.TempDir()+", tailoredKubeletConfig: {containerRuntimeEndpoint: unix:///run/nobody.sock, readOnlyPort: 1}}}\n")
	for _, args := range [][]string{{"list"}, {"prune", "--force"}, {"pull", "example.com/a:1"}} {
		cmd := newRootCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"images"}, append(args, "--config", config)...))
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), "does not answer at unix:///run/nobody.sock (is it running? try: systemctl status containerd)") {
			t.Errorf("images %v = %v, want that the runtime does not answer, with a remedy", args, err)
		}
	}
}

// TestPullOptions: a pull by hand looks for the node's credentials where the agent does.
func TestPullOptions(t *testing.T) {
	cfg := v1alpha2.Default()
	cfg.Modules.Edged.RootDirectory = "/data/kubelet"
	tool := &imageTool{agent: &agent{cfg: cfg}}
	if got := tool.pullOptions().CredentialsDir; got != "/data/kubelet" {
		t.Errorf("folder of the node's credentials = %q, want /data/kubelet", got)
	}
}
