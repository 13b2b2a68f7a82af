package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	// maxColumns is the longest line of Go code; a tab counts as tabColumns.
	maxColumns = 120
	tabColumns = 4
)

// generated matches the line that marks generated code.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// TestLineLength checks that no line of Go code in this module is too long.
func TestLineLength(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(entry.Name(), ".") {
				return filepath.SkipDir // a module of its own
			}
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || generated.Match(text) {
			return err
		}
		for _, line := range longLines(text) {
			t.Errorf("%s:%s", path, line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// longLines returns the lines of a Go file that are too long, each as "LINE: N columns, want 120 at most". Lines of a
// raw string, such as JSON or the tag of a field, and of a drawing in a comment may be longer.
func longLines(text []byte) []string {
	free := map[int]bool{}
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	for {
		at, tok, literal := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.STRING && strings.HasPrefix(literal, "`") {
			first := file.Line(at)
			for line := range strings.Count(literal, "\n") + 1 {
				free[first+line] = true
			}
		}
	}
	var long []string
	for i, line := range strings.Split(string(text), "\n") {
		drawing := strings.HasPrefix(strings.TrimLeft(line, "\t"), "//\t")
		if n := columns(line); n > maxColumns && !free[i+1] && !drawing {
			long = append(long, fmt.Sprintf("%d: %d columns, want %d at most", i+1, n, maxColumns))
		}
	}
	return long
}

// columns returns the width of a line.
func columns(line string) int {
	n := 0
	for _, r := range line {
		if r == '\t' {
			n += tabColumns
		} else {
			n++
		}
	}
	return n
}

func TestLongLines(t *testing.T) {
	wide := strings.Repeat("x", maxColumns-len("// "))
	text := strings.Join([]string{
		"package p",
		"// " + wide,
		"// " + wide + "y",
		"//\t" + wide + "y",
		"const a = `" + wide + "y`",
		"const b = `{",
		wide + wide,
		"}`",
		"\t// " + wide,
		"// " + strings.Repeat("ü", maxColumns-len("// ")),
	}, "\n")
	want := []string{"3: 121 columns, want 120 at most", "9: 124 columns, want 120 at most"}
	if diff := cmp.Diff(want, longLines([]byte(text))); diff != "" {
		t.Errorf("long lines (-want +got):\n%s", diff)
	}
}
