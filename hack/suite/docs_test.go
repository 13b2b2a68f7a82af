package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	// link matches the target of a link in Markdown to a file of the project, heading a title.
	link    = regexp.MustCompile(`\]\(([^)#:\s]*)(#[^)\s]+)?\)`)
	heading = regexp.MustCompile(`^#+ (.+)$`)
	// page matches the name of a page of documentation, as code, manifests and messages give it.
	page = regexp.MustCompile(`\bdocs/[a-z0-9-]+\.md\b`)
)

// maxReadme is how long README may be, in bytes: it is the front door, and docs/README.md the way on.
const maxReadme = 7 << 10

// TestLinks checks that each link of the documentation leads to a file and a title that are there, and that each page
// which a file names is.
func TestLinks(t *testing.T) {
	titles := map[string]map[string]bool{}
	for _, file := range files(t) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 || strings.HasPrefix(file, "bench/") {
			continue
		}
		for _, name := range page.FindAllString(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil && !foreign[file+" "+name] {
				t.Errorf("%s names %s, want a page that is there", file, name)
			}
		}
		if filepath.Ext(file) != ".md" {
			continue
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			target := file
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(file), found[1])
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, want a file that is there", file, found[0])
				continue
			}
			if found[2] == "" {
				continue
			}
			if titles[target] == nil {
				titles[target] = titlesOf(t, target)
			}
			if !titles[target][found[2][1:]] {
				t.Errorf("%s links to %s, want a title that is there", file, found[0])
			}
		}
	}
}

// foreign are pages of other projects, by the file that names them.
var foreign = map[string]bool{
	"edged/containers/cri/leases.go docs/garbage-collection.md": true,
	"hack/suite/docs_test.go docs/garbage-collection.md":        true,
}

// TestIndex checks that docs/README.md leads to every page, and that README is short.
func TestIndex(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(root, "docs", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files(t) {
		name, ok := strings.CutPrefix(file, "docs/")
		if ok && filepath.Ext(name) == ".md" && name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md has no link to %s, want one", name)
		}
	}
	readme, err := os.Stat(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if readme.Size() > maxReadme {
		t.Errorf("README.md has %d bytes, want %d at most: what is more belongs to docs", readme.Size(), maxReadme)
	}
}

// TestChecklists checks that docs/dev.md names files and folders that are there.
func TestChecklists(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "dev.md"))
	if err != nil {
		t.Fatal(err)
	}
	path := regexp.MustCompile("`([a-z0-9_]+(?:/[A-Za-z0-9_.]+)*(?:\\.md|\\.go)?)`")
	names := path.FindAllStringSubmatch(string(text), -1)
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(root, name[1])); err != nil {
			t.Errorf("docs/dev.md names %s, want it there", name[1])
		}
	}
	if len(names) < 20 {
		t.Errorf("docs/dev.md names %d files, want the checklists", len(names))
	}
}

func TestTitles(t *testing.T) {
	got := titlesIn("# What `it` costs, in MB\ntext\n```\n# no title\n```\n## Tunnels (ours)\n")
	if diff := cmp.Diff(map[string]bool{"what-it-costs-in-mb": true, "tunnels-ours": true}, got); diff != "" {
		t.Errorf("titles (-want +got):\n%s", diff)
	}
}

func titlesOf(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return titlesIn(string(text))
}

// titlesIn returns the titles of a page in the form that links have.
func titlesIn(text string) map[string]bool {
	titles, code := map[string]bool{}, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if found := heading.FindStringSubmatch(line); found != nil && !code {
			title := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(found[1]), "")
			titles[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return titles
}

// files returns the files of the project, from its root.
func files(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." && (strings.HasPrefix(name, ".") || name == "bin") {
			return filepath.SkipDir
		}
		if entry.Type().IsRegular() {
			list = append(list, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
