package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// lister is the tool that lists a program's modules, pinned in the module hack/sbom.
const lister = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod"

// sqliteModule brings SQLite's own source, in one file.
const sqliteModule = "github.com/mattn/go-sqlite3"

func (r *release) buildLister(ctx context.Context) (string, error) {
	tool := filepath.Join(r.work, "cyclonedx-gomod")
	return tool, command(ctx, filepath.Join(r.source, "hack/sbom"), []string{"CGO_ENABLED=0", "GOFLAGS="}, "go",
		"build", "-trimpath", "-o", tool, lister)
}

// parts is where the list of a program's parts goes.
func (r *release) parts(t target) string { return r.binary(t) + ".cdx.json" }

// list writes the list of a program's parts: its modules, as recorded in the program, and what the C compiler added.
func (r *release) list(ctx context.Context, tool string, t target) error {
	raw := filepath.Join(r.work, "parts.json")
	if err := r.runLister(ctx, tool, r.binary(t), raw); err != nil {
		return err
	}
	data, err := os.ReadFile(raw)
	if err != nil {
		return err
	}
	foreign, err := r.foreignParts(ctx, t)
	if err != nil {
		return err
	}
	if data, err = complete(data, foreign, r.made); err != nil {
		return err
	}
	return os.WriteFile(r.parts(t), data, 0o644)
}

// runLister writes the list of a program's modules. Licences are read from the modules that were built; nothing is
// fetched. Without GOSUMDB=off, the go command asks for the checksums of modules that are in the cache, and takes those
// that it cannot ask for as not cached.
func (r *release) runLister(ctx context.Context, tool, program, out string) error {
	return command(ctx, r.source, []string{"GOPROXY=off", "GOSUMDB=off"}, tool, "bin", "-json", "-noserial",
		"-notimestamp", "-std", "-licenses", "-version", r.version, "-output", out, program)
}

// part is one that is not a Go module.
type part struct {
	name, version, purl, cpe, license string
	// of is the purl, without its version, of the module that brings it; "" is the program itself.
	of string
}

// foreignParts are those of a program that the C compiler put in.
func (r *release) foreignParts(ctx context.Context, t target) ([]part, error) {
	dir, err := output(ctx, r.source, nil, "go", "list", "-m", "-f", "{{.Dir}}", sqliteModule)
	if err != nil {
		return nil, err
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(dir), "sqlite3-binding.h"))
	if err != nil {
		return nil, err
	}
	sqlite, err := sqliteVersion(header)
	if err != nil {
		return nil, err
	}
	host, err := output(ctx, r.source, nil, "dpkg", "--print-architecture")
	if err != nil {
		return nil, err
	}
	pkg := t.libc
	if strings.TrimSpace(host) == t.debian {
		pkg = "libc6-dev"
	}
	libc, err := output(ctx, r.source, nil, "dpkg-query", "-W", "-f", "${Version}", pkg)
	if err != nil {
		return nil, err
	}
	gcc, err := output(ctx, r.source, nil, t.triplet+"-gcc", "-dumpfullversion")
	if err != nil {
		return nil, err
	}
	upstream, _, _ := strings.Cut(libc, "-")
	gcc = strings.TrimSpace(gcc)
	return []part{
		{name: "sqlite", version: sqlite, license: "blessing", of: "pkg:golang/" + sqliteModule,
			purl: "pkg:generic/sqlite@" + sqlite, cpe: "cpe:2.3:a:sqlite:sqlite:" + sqlite + ":*:*:*:*:*:*:*"},
		{name: "glibc", version: libc, license: "LGPL-2.1-or-later",
			purl: "pkg:deb/debian/" + pkg + "@" + libc, cpe: "cpe:2.3:a:gnu:glibc:" + upstream + ":*:*:*:*:*:*:*"},
		{
			name:    "libgcc",
			version: gcc,
			license: "GPL-3.0-or-later WITH GCC-exception-3.1",
			purl:    "pkg:generic/libgcc@" + gcc,
		},
	}, nil
}

var sqliteDefine = regexp.MustCompile(`(?m)^#define\s+SQLITE_VERSION\s+"([0-9.]+)"`)

// sqliteVersion reads which SQLite it is from its header.
func sqliteVersion(header []byte) (string, error) {
	m := sqliteDefine.FindSubmatch(header)
	if m == nil {
		return "", errors.New("SQLite's header says no version")
	}
	return string(m[1]), nil
}

// complete adds the parts that are not modules to a CycloneDX list, and removes what would differ between machines.
func complete(list []byte, foreign []part, made time.Time) ([]byte, error) {
	var bom struct {
		Metadata     map[string]any   `json:"metadata"`
		Components   []map[string]any `json:"components"`
		Dependencies []map[string]any `json:"dependencies"`
	}
	var whole map[string]any
	if err := errors.Join(json.Unmarshal(list, &bom), json.Unmarshal(list, &whole)); err != nil {
		return nil, err
	}
	main, _ := bom.Metadata["component"].(map[string]any)
	root, _ := main["bom-ref"].(string)
	if root == "" || len(bom.Components) == 0 || len(bom.Dependencies) == 0 {
		return nil, errors.New("the list has no program, or no parts")
	}
	bom.Metadata["timestamp"] = made.UTC().Format(time.RFC3339)
	if tools, ok := bom.Metadata["tools"].([]any); ok {
		for _, tool := range tools {
			if tool, ok := tool.(map[string]any); ok {
				delete(tool, "hashes")
			}
		}
	}
	if err := setLicences(bom.Components); err != nil {
		return nil, err
	}
	for _, p := range foreign {
		c := map[string]any{"type": "library", "name": p.name, "version": p.version, "purl": p.purl, "bom-ref": p.purl,
			"licenses": licenses(p.license)}
		if p.cpe != "" {
			c["cpe"] = p.cpe
		}
		bom.Components = append(bom.Components, c)
		user := root
		for _, d := range bom.Dependencies {
			if ref, _ := d["ref"].(string); p.of != "" && strings.HasPrefix(ref, p.of+"@") {
				user = ref
			}
		}
		if p.of != "" && user == root {
			return nil, fmt.Errorf("the program has no %s, which brings %s", p.of, p.name)
		}
		for _, d := range bom.Dependencies {
			if d["ref"] == user {
				on, _ := d["dependsOn"].([]any)
				d["dependsOn"] = append(on, p.purl)
			}
		}
		bom.Dependencies = append(bom.Dependencies, map[string]any{"ref": p.purl})
	}
	whole["metadata"], whole["components"], whole["dependencies"] = bom.Metadata, bom.Components, bom.Dependencies
	var out bytes.Buffer
	w := json.NewEncoder(&out)
	w.SetEscapeHTML(false)
	w.SetIndent("", "  ")
	err := w.Encode(whole)
	return out.Bytes(), err
}

// licenses is a licence in CycloneDX's form: one of SPDX's, or an expression of several.
func licenses(spdx string) []any {
	if strings.Contains(spdx, " ") {
		return []any{map[string]any{"expression": spdx}}
	}
	return []any{map[string]any{"license": map[string]any{"id": spdx}}}
}

// setLicences sets the licence of Go's standard library, which the list lacks, and checks that every part has one.
func setLicences(components []map[string]any) error {
	var without []string
	for _, c := range components {
		evidence, _ := c["evidence"].(map[string]any)
		switch {
		case c["licenses"] != nil || evidence["licenses"] != nil:
		case c["name"] == "std":
			c["licenses"] = licenses("BSD-3-Clause")
		default:
			without = append(without, fmt.Sprint(c["name"]))
		}
	}
	if len(without) > 0 {
		return fmt.Errorf("%d of %d parts have no licence: %s; are their modules in the module cache?", len(without),
			len(components), strings.Join(without, ", "))
	}
	return nil
}
