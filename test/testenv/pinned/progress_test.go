package pinned

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var seconds = regexp.MustCompile(`\d+s\b`)

// untimed is what is said without how long it took.
func untimed(output string) string { return seconds.ReplaceAllString(output, "N s") }

func TestProgress(t *testing.T) {
	for name, test := range map[string]struct {
		chunks []string
		done   int
		errors []string
		says   string
	}{
		"nothing": {},
		"packages": {
			chunks: []string{"k8s.io/api/core/v1\nnet\n"}, done: 2, says: "  2 of 10 packages, N s\n",
		},
		"a package in pieces": {
			chunks: []string{"k8s.io/api", "/core/v1", "\nne", "t\n"}, done: 2, says: "  0 of 10 packages, N s\n",
		},
		"downloads": {
			chunks: []string{"go: downloading k8s.io/api v0.36.3\n"}, says: "  0 of 10 packages, N s\n",
		},
		"errors": {
			chunks: []string{"# k8s.io/api\n", "core.go:1:2: no such thing\n", "net\n"}, done: 1,
			errors: []string{"# k8s.io/api", "core.go:1:2: no such thing"}, says: "  0 of 10 packages, N s\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var output strings.Builder
			out := NewProgress(&output, 10)
			for _, chunk := range test.chunks {
				if n, err := out.Write([]byte(chunk)); n != len(chunk) || err != nil {
					t.Fatalf("Write = %d, %v; want %d", n, err, len(chunk))
				}
			}
			if out.done != test.done {
				t.Errorf("%d packages, want %d", out.done, test.done)
			}
			if diff := cmp.Diff(test.errors, out.errors); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.says, untimed(output.String())); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

// Progress is reported at most every progressInterval, however many packages there are.
func TestProgressIsQuiet(t *testing.T) {
	var output strings.Builder
	out := NewProgress(&output, 3)
	for range 3 {
		if _, err := out.Write([]byte("net\n")); err != nil {
			t.Fatal(err)
		}
	}
	if lines := strings.Count(output.String(), "\n"); lines != 1 {
		t.Errorf("%d lines, want 1:\n%s", lines, &output)
	}
	out.told = out.told.Add(-progressInterval)
	if _, err := out.Write([]byte("net\n")); err != nil {
		t.Fatal(err)
	}
	if want := "  1 of 3 packages, N s\n  4 of 4 packages, N s\n"; untimed(output.String()) != want {
		t.Errorf("progress %q, want %q", &output, want)
	}
}

func TestExplain(t *testing.T) {
	_, err := exec.CommandContext(t.Context(), "sh", "-c", "echo no such module >&2; exit 4").Output()
	if got, want := explain(err).Error(), "exit status 4: no such module"; got != want {
		t.Errorf("explain = %q, want %q", got, want)
	}
	if got := explain(os.ErrClosed); got != os.ErrClosed {
		t.Errorf("explain = %v, want the error as it was", got)
	}
}
