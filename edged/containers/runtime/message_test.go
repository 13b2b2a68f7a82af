package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMessageKeepsItsEnd: of a message that is too long the end counts, where programs say why they died.
func TestMessageKeepsItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "message")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 2*maxMessage)+"the cause"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readMessage(path); err != nil || len(got) != maxMessage || !strings.HasSuffix(got, "the cause") {
		t.Errorf("%d bytes, ending in %q, %v; want %v, a text that ends with \"the cause\"",
			len(got), got[max(0, len(got)-20):], err, maxMessage)
	}
}

// TestMessageOf: what a container left behind follows what the runtime says, and what cannot be read is
// reported as such.
func TestMessageOf(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "message")
	if err := os.WriteFile(file, []byte("bye"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "0.log")
	if err := os.WriteFile(log, []byte("2026-01-01T00:00:00Z stderr F logged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(dir, "gone")
	for name, c := range map[string]struct {
		mount, log, reason, message string
		want                        string // begins with
	}{
		"file":                 {mount: file, log: log, want: "bye"},
		"file and the runtime": {mount: file, message: "OOM", want: "OOM: bye"},
		"no file":              {mount: gone, message: "OOM", log: log, want: "OOM: logged\n"},
		"no mount":             {log: log, want: "logged\n"},
		"no mount, it could not run": {
			log:     log,
			reason:  reasonCannotRun,
			message: "no such file",
			want:    "no such file",
		},
		"file cannot be read": {mount: dir, log: log, want: "Error on reading termination log " + dir + ": "},
		"log cannot be read":  {log: gone, want: "Error on reading termination message from logs: "},
	} {
		st := &runtimeapi.ContainerStatus{
			ExitCode: 1,
			Reason:   c.reason,
			Message:  c.message,
			LogPath:  c.log,
			Annotations: map[string]string{
				annotationTerminationMessagePath:   "/m",
				annotationTerminationMessagePolicy: string(v1.TerminationMessageFallbackToLogsOnError),
			},
		}
		if c.mount != "" {
			st.Mounts = []*runtimeapi.Mount{{ContainerPath: "/m", HostPath: c.mount}}
		}
		got := terminationMessage(st)
		if exact := !strings.HasSuffix(c.want, ": "); exact && got != c.want || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: terminationMessage() = %q, want %q", name, got, c.want)
		}
	}
}

// TestLogTailJoinsParts: a line that the runtime wrote in parts is one line.
func TestLogTailJoinsParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	const at = "2026-01-01T00:00:00Z stderr "
	if err := os.WriteFile(path, []byte(at+"P pan\n"+at+"F ic\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := logTail(path); err != nil || got != "panic\n" {
		t.Errorf("logTail() = %q, %v; want \"panic\\n\"", got, err)
	}
}

// TestMountedMessagePath: a volume mounted at the path of the message does not take its place.
func TestMountedMessagePath(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"volume": "of the node", "message": "bye"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	st := &runtimeapi.ContainerStatus{
		Annotations: map[string]string{annotationTerminationMessagePath: "/m"}, Mounts: []*runtimeapi.Mount{
			{ContainerPath: "/m", HostPath: filepath.Join(dir, "volume")},
			{ContainerPath: "/m", HostPath: filepath.Join(dir, "message")},
		},
	}
	if got := terminationMessage(st); got != "bye" {
		t.Errorf("terminationMessage() = %q, want \"bye\"", got)
	}
}

// TestLogTailOfLongLines: the end of a line that is longer than what is read of a log at first, and of one that the
// runtime has split.
func TestLogTailOfLongLines(t *testing.T) {
	const at = "2026-01-01T00:00:00Z stderr "
	long := "FATAL {" + strings.Repeat("y", 10_000) + "} the cause"
	split := ""
	for range 3 {
		split += at + "P " + strings.Repeat("y", 16<<10) + "\n"
	}
	for name, log := range map[string]string{
		"one record": at + "F " + long + "\n",
		"records":    split + at + "F } the cause\n",
	} {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := logTail(path)
		if err != nil || len(got) != maxMessageLog || !strings.HasSuffix(got, "} the cause\n") {
			t.Errorf("%s: logTail() = %d bytes %.40q, %v; want %d that end with the cause", name, len(got), got, err,
				maxMessageLog)
		}
	}
}
