package pinned

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestBuild: a build says what it builds and how long that took, and a failed one what the compiler says.
func TestBuild(t *testing.T) {
	module := t.TempDir()
	write := func(body string) {
		t.Helper()
		if err := errors.Join(
			os.WriteFile(filepath.Join(module, "go.mod"), []byte("module example.com/hello\n\ngo 1.26.0\n"), 0o644),
			os.WriteFile(filepath.Join(module, "main.go"), []byte("package main\n\nfunc main() { "+body+" }\n"), 0o644),
		); err != nil {
			t.Fatal(err)
		}
	}
	hello, binary := Program{Name: "hello", Target: ".", Takes: "a second"}, filepath.Join(module, "hello")
	write(`println("hello")`)
	var output strings.Builder
	if err := hello.build(t.Context(), module, binary+".building", &output); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^Building hello: \d+ packages, a second for all on 2 cores; the next run finds it in ` +
		regexp.QuoteMeta(binary) + `\n(  \d+ of \d+ packages, \d+s\n)*Built hello in \d+s\n$`).
		MatchString(output.String()) {
		t.Errorf("progress = %q, want what is built, how far it is, and how long it took", &output)
	}
	if out, err := exec.Command(binary + ".building").CombinedOutput(); err != nil || string(out) != "hello\n" {
		t.Errorf("the program prints %q, %v; want hello", out, err)
	}
	write("nothing()")
	if err := hello.build(t.Context(), module, binary, &output); err == nil ||
		!strings.Contains(err.Error(), "undefined: nothing") {
		t.Errorf("error = %v, want the compiler's", err)
	}
}
