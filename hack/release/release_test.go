package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

var made = time.Date(2026, 11, 21, 16, 47, 0, 0, time.UTC)

func TestTargets(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string
		err  string
	}{
		{args: "", want: "amd64 arm64 armhf"},
		{args: "arm64", want: "arm64"},
		{args: "armhf amd64", want: "armhf amd64"},
		{args: "armv7", want: "armhf"},
		{args: "mips", err: `unknown architecture "mips": want amd64, arm64, armv7`},
	} {
		list, err := targetsOf(strings.Fields(tc.args))
		var got []string
		for _, target := range list {
			got = append(got, target.debian)
		}
		if text := errText(err); strings.Join(got, " ") != tc.want || text != tc.err {
			t.Errorf("targetsOf(%q) = %q, error %q; want %q, %q", tc.args, got, text, tc.want, tc.err)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestDebianVersion(t *testing.T) {
	got := map[string]string{}
	want := map[string]string{
		"v1.2.0":                "1.2.0",
		"1.2.0":                 "1.2.0",
		"v1.3.0-rc.1":           "1.3.0~rc.1",
		"v1.2.0-5-gabc1234":     "1.2.0+5.gabc1234",
		"v1.3.0-rc.1-2-g0a":     "1.3.0~rc.1+2.g0a",
		"v1.2.0-dirty":          "1.2.0+dirty",
		"v1.2.0-5-gabc-dirty":   "1.2.0+5.gabc+dirty",
		"ca8ef2a":               "0.0.0+git20261121164700.ca8ef2a",
		"ca8ef2a-dirty":         "0.0.0+git20261121164700.ca8ef2a+dirty",
		"v0.0.0-dev":            "0.0.0+git20261121164700.v0.0.0.dev",
		"release/of today; rm ": "0.0.0+git20261121164700.release.of.today..rm.",
	}
	for version := range want {
		got[version] = debianVersion(version, made)
		if err := exec.CommandContext(t.Context(), "dpkg", "--validate-version", got[version]).Run(); err != nil {
			t.Errorf("dpkg does not take %q: %v", got[version], err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestUpgradesGoUp: anyone who builds on gets a version that dpkg takes for a newer one.
func TestUpgradesGoUp(t *testing.T) {
	versions := []string{
		debianVersion("ca8ef2a", made), debianVersion("0123abc", made.Add(time.Second)),
		debianVersion("v1.2.0-alpha.1", made),
		debianVersion("v1.2.0-rc.1", made), debianVersion("v1.2.0-rc.1-3-gfff", made),
		debianVersion("v1.2.0-rc.2", made), debianVersion("v1.2.0", made),
		debianVersion("v1.2.0-9-gfff", made), debianVersion("v1.2.0-10-g000", made), debianVersion("v1.2.1", made),
	}
	for i := range len(versions) - 1 {
		if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", versions[i], "lt", versions[i+1]).
			Run(); err != nil {
			t.Errorf("%s is not before %s: %v", versions[i], versions[i+1], err)
		}
	}
}

const listed = `{"bomFormat": "CycloneDX", "specVersion": "1.6",
	"metadata": {"tools": [{"name": "lister", "hashes": [{"alg": "MD5", "content": "0"}]}], "component": {"bom-ref": "main", "name": "edgecore"}},
	"components": [{"name": "go-sqlite3", "bom-ref": "pkg:golang/github.com/mattn/go-sqlite3@v1.14.52?type=module", "evidence": {"licenses": [{"license": {"id": "MIT"}}]}}],
	"dependencies": [{"ref": "main", "dependsOn": ["x"]}, {"ref": "pkg:golang/github.com/mattn/go-sqlite3@v1.14.52?type=module"}]}`

func TestComplete(t *testing.T) {
	foreign := []part{
		{
			name:    "sqlite",
			version: "3.50",
			license: "blessing",
			of:      "pkg:golang/" + sqliteModule,
			purl:    "pkg:generic/sqlite@3.50",
			cpe:     "cpe:sqlite",
		},
		{name: "libgcc", version: "12", license: "A WITH B", purl: "pkg:generic/libgcc@12"},
	}
	first, err := complete([]byte(listed), foreign, made)
	if err != nil {
		t.Fatal(err)
	}
	second, err := complete([]byte(listed), foreign, made)
	if err != nil || string(first) != string(second) {
		t.Errorf("completed again: %s, %v; want %s", second, err, first)
	}
	var got, want any
	if err := json.Unmarshal(first, &got); err != nil {
		t.Fatal(err)
	}
	const whole = `{"bomFormat": "CycloneDX", "specVersion": "1.6",
		"metadata": {"timestamp": "2026-11-21T16:47:00Z", "tools": [{"name": "lister"}], "component": {"bom-ref": "main", "name": "edgecore"}},
		"components": [
			{"name": "go-sqlite3", "bom-ref": "pkg:golang/github.com/mattn/go-sqlite3@v1.14.52?type=module", "evidence": {"licenses": [{"license": {"id": "MIT"}}]}},
			{"type": "library", "name": "sqlite", "version": "3.50", "purl": "pkg:generic/sqlite@3.50", "bom-ref": "pkg:generic/sqlite@3.50", "cpe": "cpe:sqlite",
				"licenses": [{"license": {"id": "blessing"}}]},
			{"type": "library", "name": "libgcc", "version": "12", "purl": "pkg:generic/libgcc@12", "bom-ref": "pkg:generic/libgcc@12", "licenses": [{"expression": "A WITH B"}]}],
		"dependencies": [{"ref": "main", "dependsOn": ["x", "pkg:generic/libgcc@12"]},
			{"ref": "pkg:golang/github.com/mattn/go-sqlite3@v1.14.52?type=module", "dependsOn": ["pkg:generic/sqlite@3.50"]},
			{"ref": "pkg:generic/sqlite@3.50"}, {"ref": "pkg:generic/libgcc@12"}]}`
	if err := json.Unmarshal([]byte(whole), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, bad := range map[string]string{"no JSON": "x", "no program": `{"components": [{}]}`} {
		if _, err := complete([]byte(bad), nil, made); err == nil {
			t.Errorf("complete with %s = nil, want an error", name)
		}
	}
	foreign[0].of = "pkg:golang/other"
	if _, err := complete([]byte(listed), foreign, made); err == nil ||
		!strings.Contains(err.Error(), "has no pkg:golang/other, which brings sqlite") {
		t.Errorf("complete with a part of nothing = %v, want that it has no pkg:golang/other", err)
	}
}

// TestLicences: a list that lacks the licence of a part is an error, but for Go's own library, whose licence is known.
func TestLicences(t *testing.T) {
	var list []map[string]any
	err := json.Unmarshal([]byte(`[{"name": "a", "licenses": [{"license": {"id": "MIT"}}]}, {"name": "std"},
		{"name": "b", "evidence": {"licenses": [{"license": {"id": "MIT"}}]}}]`), &list)
	if err != nil {
		t.Fatal(err)
	}
	if err := setLicences(list); err != nil {
		t.Errorf("setLicences = %v, want no error", err)
	}
	if diff := cmp.Diff(licenses("BSD-3-Clause"), list[1]["licenses"]); diff != "" {
		t.Errorf("licence of std (-want +got):\n%s", diff)
	}
	list = append(list, map[string]any{"name": "c"}, map[string]any{"name": "d", "evidence": map[string]any{}})
	if err := setLicences(list); err == nil || !strings.Contains(err.Error(), "2 of 5 parts have no licence: c, d") {
		t.Errorf("setLicences without licences of c and d = %v, want an error that names both", err)
	}
}

// TestLister: the tool finds the licences of the modules of a program, this test, with nothing fetched.
func TestLister(t *testing.T) {
	r := &release{source: "../..", work: t.TempDir(), version: "v1"}
	tool, err := r.buildLister(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw := filepath.Join(r.work, "parts.json")
	if err := r.runLister(t.Context(), tool, os.Args[0], raw); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Components []map[string]any `json:"components"`
	}
	if err := json.Unmarshal(data, &bom); err != nil || len(bom.Components) == 0 {
		t.Fatalf("%d parts, %v; want some", len(bom.Components), err)
	}
	if err := setLicences(bom.Components); err != nil {
		t.Error(err)
	}
}

func TestSQLiteVersion(t *testing.T) {
	got, err :=
		sqliteVersion(
			[]byte("/* x */\n#define SQLITE_VERSION        \"3.50.4\"\n#define SQLITE_VERSION_NUMBER 3050004\n"))
	if err != nil || got != "3.50.4" {
		t.Errorf("sqliteVersion = %q, %v; want 3.50.4", got, err)
	}
	if got, err := sqliteVersion([]byte("#define SQLITE_VERSION_NUMBER 3050004\n")); err == nil {
		t.Errorf("sqliteVersion without one = %q, want an error", got)
	}
}

func TestNotices(t *testing.T) {
	texts := map[string][]string{}
	for name, files := range map[string]map[string]string{
		"b.org/x v1": {"LICENSE": "MIT\n", "readme.md": "no"}, "a.org/y v2": {"license.txt": "MIT", "NOTICE": "by a"},
		"c.org/z v3": {"COPYING.md": "GPL"},
	} {
		dir := t.TempDir()
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := readNotices(name, dir, texts); err != nil {
			t.Fatal(err)
		}
	}
	line := strings.Repeat("=", 78)
	want := "edgecore contains these Go modules and Go's own libraries, under these licences.\n\n" + line +
		"\na.org/y v2\n\nby a\n\n" +
		line + "\na.org/y v2\nb.org/x v1\n\nMIT\n\n" + line + "\nc.org/z v3\n\nGPL\n"
	if diff := cmp.Diff(want, string(writeNotices(texts))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := readNotices("d.org/none v1", t.TempDir(), texts); err == nil ||
		!strings.Contains(err.Error(), "d.org/none v1: there is no file with a licence") {
		t.Errorf("readNotices of a module without a licence = %v, want an error", err)
	}
}

func TestCheckBinary(t *testing.T) {
	if err := checkBinary("/bin/sh"); err == nil || !strings.Contains(err.Error(), "it is not static") {
		t.Errorf("checkBinary of a program with libraries = %v, want %q", err, "it is not static")
	}
	source, program := filepath.Join(t.TempDir(), "x.go"), filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(source, []byte("package main\nimport \"C\"\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &release{tags: "osusergo,netgo"}
	static := []string{"build", "-ldflags", "-linkmode external -extldflags -static"}
	stripped := []string{"build", "-ldflags", "-s -w -linkmode external -extldflags '-static -Wl,-z,norelro'"}
	writable := []string{"build", "-ldflags", "-s -w -linkmode external -extldflags '-static -Wl,-z,execstack'"}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{static, "it is not stripped"},
		{stripped, "what is relocated stays writable"},
		{writable, "its stack is executable"},
		{r.buildArgs(), ""}, // the last one is used below
	} {
		cmd := exec.CommandContext(t.Context(), "go", append(slices.Clone(tc.args), "-o", program, source)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS="+cFlags)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %q: %v, want no error\n%s", tc.args, err, out)
		}
		if err := checkBinary(program); !strings.HasPrefix(errText(err), tc.want) || (err != nil) != (tc.want != "") {
			t.Errorf("checkBinary of go %q = %v, want %q at its start", tc.args, err, tc.want)
		}
	}
	if err := os.Truncate(program, maxSize+1); err != nil {
		t.Fatal(err)
	}
	if err := checkBinary(program); err == nil || !strings.Contains(err.Error(), "more than 34000000") {
		t.Errorf("checkBinary of a large one = %v, want an error with %q", err, "more than 34000000")
	}
}

// TestMakefileHardens: `make build` uses the flags of the releases.
func TestMakefileHardens(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`CGO_CFLAGS="` + cFlags + `"`, `-extldflags '` + linkFlags + `'`} {
		if !strings.Contains(string(makefile), want) {
			t.Errorf("the Makefile has no %s, want the flags of hack/release/build.go", want)
		}
	}
}

func TestDifferences(t *testing.T) {
	got := differences(map[string]string{"same": "1", "other": "1", "gone": "1"},
		map[string]string{"same": "1", "other": "2", "new": "1"})
	if diff := cmp.Diff([]string{"gone", "new", "other"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPackagedConfiguration: the file is valid, and leads where the package says.
func TestPackagedConfiguration(t *testing.T) {
	cfg, warnings, err := v1alpha2.Load(filepath.Join("../..", debianDir, "edgecore.yaml"))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("err %v, warnings %v; want neither", err, warnings)
	}
	want := v1alpha2.Default()
	want.Database.DataSource = "/var/lib/edgecore/edgecore.db"
	hub, kubelet := &want.Modules.EdgeHub, &want.Modules.Edged.TailoredKubeletConfig
	hub.TLSCAFile, hub.TLSCertFile, hub.TLSPrivateKeyFile = "/etc/edgecore/certs/rootCA.crt",
		"/etc/edgecore/certs/server.crt", "/etc/edgecore/certs/server.key"
	kubelet.StaticPodPath = "/etc/edgecore/manifests"
	want.Modules.Edged.HostnameOverride = cfg.Modules.Edged.HostnameOverride
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("other keys than those (-want +got):\n%s", diff)
	}
	unit, err := os.ReadFile(filepath.Join("../../deploy/systemd", systemd.Name))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(unit), systemd.Unit("/usr/bin/edgecore", "/etc/edgecore/edgecore.yaml")); diff != "" {
		t.Errorf("unit (-want +got):\n%s", diff)
	}
}
