package cloudcore

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestFiles: Files has every manifest of this folder, as it is there.
func TestFiles(t *testing.T) {
	var onDisk, embedded []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".yaml" {
			onDisk = append(onDisk, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = fs.WalkDir(Files(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			embedded = append(embedded, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(onDisk, embedded); diff != "" {
		t.Fatalf("Files() mismatch (-on disk +embedded):\n%s", diff)
	}
	for _, name := range embedded {
		got, err := fs.ReadFile(Files(), name)
		if err != nil {
			t.Error(err)
		}
		if want, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes in Files(), want the %d on disk (%v)", name, len(got), len(want), err)
		}
	}
}

// TestWhatIsDeleted: what an operator deletes with `kubectl delete -k` has neither the namespace nor a kind of objects
// in it; both are in setup, and in no file beside.
func TestWhatIsDeleted(t *testing.T) {
	for _, dir := range []string{LoadBalancer, HostNetwork, NodePort, Before136} {
		for _, file := range resources(t, dir) {
			for _, kind := range kinds(t, file) {
				if kind == "Namespace" || kind == "CustomResourceDefinition" {
					t.Errorf("%s has the %s of %s: kubectl delete -k would delete devices", dir, kind, file)
				}
			}
		}
	}
	var got []string
	for _, file := range resources(t, Setup) {
		got = append(got, kinds(t, file)...)
	}
	slices.Sort(got)
	want := append(slices.Repeat([]string{"CustomResourceDefinition"}, 5), "Namespace")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds of setup mismatch (-want +got):\n%s", diff)
	}
}

// TestNoAddress: no installation has an address, which would be another cluster's.
func TestNoAddress(t *testing.T) {
	address := regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b|example\.com`)
	err := fs.WalkDir(Files(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(Files(), name)
		for _, found := range address.FindAllString(string(data), -1) {
			if found != "0.0.0.0" && found != "127.0.0.1" && path.Dir(name) != "crds" {
				t.Errorf("%s has the address %s, want none", name, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// resources returns the files of a kustomization and of those that it names.
func resources(t *testing.T, dir string) (out []string) {
	t.Helper()
	var k struct{ Resources []string }
	data, err := fs.ReadFile(Files(), path.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &k); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	for _, name := range k.Resources {
		name = path.Join(dir, name)
		if strings.HasSuffix(name, ".yaml") {
			out = append(out, name)
		} else {
			out = append(out, resources(t, name)...)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no resources, want some", dir)
	}
	return out
}

// kinds returns the kinds of the objects in a file.
func kinds(t *testing.T, file string) (out []string) {
	t.Helper()
	data, err := fs.ReadFile(Files(), file)
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var object metav1.TypeMeta
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if object.Kind != "" {
			out = append(out, object.Kind)
		}
	}
}
