package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
)

func TestPrintImages(t *testing.T) {
	list := []imagegc.Image{
		{
			ID:     "sha256:0123456789abcdef",
			Names:  []string{"example.com/a:1", "example.com/a@sha256:ff"},
			Size:   3 << 20,
			Needed: imagegc.NeededByPod,
		},
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

// TestImagesWithoutRuntime: a runtime that is down is named, with what to do.
func TestImagesWithoutRuntime(t *testing.T) {
	config := writeConfig(t, "modules: {edged: {rootDirectory: "+t.TempDir()+
		", tailoredKubeletConfig: {containerRuntimeEndpoint: unix:///run/nobody.sock, readOnlyPort: 1}}}\n")
	for _, args := range [][]string{{"list"}, {"prune", "--force"}, {"pull", "example.com/a:1"}} {
		cmd := newRootCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"images"}, append(args, "--config", config)...))
		err := cmd.ExecuteContext(t.Context())
		if err == nil ||
			!strings.Contains(err.Error(),
				"does not answer at unix:///run/nobody.sock (is it running? try: systemctl status containerd)") {
			t.Errorf("images %v = %v, want that the runtime does not answer, with a remedy", args, err)
		}
	}
}
