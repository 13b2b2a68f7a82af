package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// noticeFile are the names of the files in which modules have their licences.
var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// notices collects the licences of all Go modules that are in a program, and of Go itself.
func (r *release) notices(ctx context.Context, binary string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(info.Deps))
	for _, d := range info.Deps {
		names = append(names, d.Path)
	}
	out, err := output(ctx, r.source, nil, "go",
		append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}, names...)...)
	if err != nil {
		return nil, err
	}
	goroot, err := output(ctx, r.source, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	texts := map[string][]string{}
	for line := range strings.Lines("Go " + info.GoVersion + "\t" + strings.TrimSpace(goroot) + "\n" + out) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if err := readNotices(name, dir, texts); err != nil {
			return nil, err
		}
	}
	return writeNotices(texts), nil
}

// readNotices adds the licences in a folder: the text of each to those who have the same.
func readNotices(name, dir string, texts map[string][]string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("licence of %s: %w", name, err)
	}
	found := false
	for _, e := range entries {
		if e.IsDir() || !noticeFile.MatchString(e.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return fmt.Errorf("licence of %s: %w", name, err)
		}
		text := string(bytes.TrimSpace(data))
		texts[text] = append(texts[text], name)
		found = true
	}
	if !found {
		return fmt.Errorf("%s: there is no file with a licence in %s", name, dir)
	}
	return nil
}

// writeNotices writes each text once, below the names of those who have it.
func writeNotices(texts map[string][]string) []byte {
	type notice struct{ names, text string }
	var list []notice
	for text, names := range texts {
		slices.Sort(names)
		list = append(list, notice{strings.Join(slices.Compact(names), "\n"), text})
	}
	slices.SortFunc(list, func(a, b notice) int {
		return strings.Compare(a.names+"\x00"+a.text, b.names+"\x00"+b.text)
	})
	var out bytes.Buffer
	fmt.Fprintln(&out, "edgecore contains these Go modules and Go's own libraries, under these licences.")
	for _, n := range list {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 78), n.names, n.text)
	}
	return out.Bytes()
}
