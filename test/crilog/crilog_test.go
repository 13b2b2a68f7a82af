// Package crilog compares how edgecore reads logs with how a kubelet does: with the kubelet's own reader, which is a
// program of another module (test/kubeletlogs).
package crilog

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/edged/containers/crilog"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

var (
	seed  = flag.Uint64("seed", 0, "seed of the random logs; 0 takes another one each time")
	cases = flag.Int("cases", 500, "how many random logs to compare")
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// request is what the program of test/kubeletlogs reads, answer what it writes.
type (
	request struct {
		Path           string
		Tail, Limit    *int64
		Since          time.Time
		Timestamps     bool
		Stdout, Stderr bool
	}
	answer struct {
		Stdout, Stderr []byte
		Err            string
	}
)

// reader is the kubelet's.
type reader struct {
	in  *json.Encoder
	out *json.Decoder
}

func startReader(t *testing.T) *reader {
	t.Helper()
	binary, err := pinned.Program{
		Name: "kubeletlogs", Folder: "kubeletlogs", Target: ".", Env: "EDGECORE_TEST_KUBELETLOGS", Takes: "2 minutes",
	}.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // the context has ended by now
	})
	return &reader{json.NewEncoder(in), json.NewDecoder(out)}
}

func (r *reader) read(t *testing.T, req request) (a answer) {
	t.Helper()
	if err := r.in.Encode(req); err != nil {
		t.Fatal(err)
	}
	if err := r.out.Decode(&a); err != nil {
		t.Fatal(err)
	}
	if a.Err != "" {
		t.Fatalf("the kubelet's reader: %s", a.Err)
	}
	return a
}

// TestAsAKubelet: random logs, whole and torn, rotated and not, are printed as by a kubelet.
//
// Where the kubelet prints less, it is given what has the same meaning: a torn end with its newline, and a log together
// with the part that was rotated away. It drops damaged lines, which this test does not make; see TestTorn of
// edged/containers/crilog.
func TestAsAKubelet(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", *seed)
	kubelet := startReader(t)
	dir := filepath.Join(t.TempDir(), "pod", "c")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path, part, whole := filepath.Join(dir, "0.log"), filepath.Join(dir, "0.log.20260101-000000"),
		filepath.Join(t.TempDir(), "whole")
	for i := range *cases {
		rnd := rand.New(rand.NewPCG(*seed, uint64(i)))
		req, opts := options(rnd)
		g := &generator{rnd: rnd, at: begin}
		// Where one stream is left out, a kubelet leaves the time out before a line that follows a part of the other.
		g.parts = !req.Timestamps || req.Stdout && req.Stderr
		older, tornPart := "", false
		if rnd.IntN(3) == 0 {
			older, tornPart = g.log(rnd.IntN(30))
		}
		log, torn := g.log(rnd.IntN(40))
		put(t, path, log)
		put(t, part, older)
		if tornPart {
			older += "\n"
		}
		if torn {
			log += "\n"
		}
		put(t, whole, older+log)

		req.Path = whole
		want := kubelet.read(t, req)
		var stdout, stderr bytes.Buffer
		var out, errOut io.Writer
		if req.Stdout {
			out = &stdout
		}
		if req.Stderr {
			errOut = &stderr
		}
		if err := crilog.PrintAttempt(t.Context(), path, out, errOut, opts, nil); err != nil {
			t.Fatal(err)
		}
		got := answer{Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}
		if torn {
			got = endedLike(got, want)
		}
		if !bytes.Equal(got.Stdout, want.Stdout) || !bytes.Equal(got.Stderr, want.Stderr) {
			text, _ := json.Marshal(req)
			t.Fatalf("case %d, %s\nstdout: %s\nstderr: %s\nthe log is %q", i, text,
				difference(got.Stdout, want.Stdout), difference(got.Stderr, want.Stderr), older+log)
		}
		last(t, kubelet, path, whole, torn)
	}
}

// difference shows where two texts begin to differ.
func difference(got, want []byte) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	from := max(0, i-60)
	return fmt.Sprintf("%.200q, want %.200q, from byte %d on", got[from:], want[from:], from)
}

// last compares the text that stands in for a termination message: the last 80 lines, of these the last 2 KiB.
func last(t *testing.T, kubelet *reader, path, whole string, torn bool) {
	t.Helper()
	const lines, size = 80, 2048
	tail := int64(lines)
	merged := kubelet.read(t, request{Path: whole, Tail: &tail, Stdout: true, Stderr: true})
	if len(merged.Stdout) > 0 && len(merged.Stderr) > 0 {
		return // the order of the two is not known
	}
	want := append(merged.Stdout, merged.Stderr...)
	got, err := crilog.Last(path, lines, size)
	if err != nil {
		t.Fatal(err)
	}
	if torn && len(got) < len(want) {
		want = bytes.TrimSuffix(want, []byte("\n"))
	}
	if torn && len(got) == size {
		return // it is one byte longer at its beginning
	}
	if want = want[max(0, len(want)-size):]; !bytes.Equal(got, want) {
		t.Fatalf("the end of a log is %q, want %q", got, want)
	}
}

// endedLike adds the newline of a torn end where the other has it.
func endedLike(got, want answer) answer {
	ended := func(got, want []byte) []byte {
		if len(want) == len(got)+1 && want[len(want)-1] == '\n' {
			return append(got, '\n')
		}
		return got
	}
	return answer{Stdout: ended(got.Stdout, want.Stdout), Stderr: ended(got.Stderr, want.Stderr)}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	var err error
	if text == "" && !strings.HasSuffix(path, "0.log") {
		err = os.RemoveAll(path)
	}
	if text != "" || !strings.Contains(path, "0.log.") {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// options are what to print, at random, for both readers.
func options(rnd *rand.Rand) (request, crilog.Options) {
	req, opts := request{Stdout: true, Stderr: true}, crilog.Options{Tail: -1}
	if rnd.IntN(2) == 0 {
		tail := rnd.Int64N(30)
		req.Tail, opts.Tail = &tail, tail
	}
	if rnd.IntN(4) == 0 {
		limit := 1 + rnd.Int64N(2000)
		req.Limit, opts.Limit = &limit, limit
	}
	if rnd.IntN(4) == 0 {
		req.Since = begin.Add(time.Duration(rnd.IntN(60)) * time.Second)
		opts.Since = req.Since
	}
	req.Timestamps = rnd.IntN(3) == 0
	opts.Timestamps = req.Timestamps
	switch rnd.IntN(6) {
	case 0:
		req.Stdout = false
	case 1:
		req.Stderr = false
	}
	return req, opts
}

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// generator makes the records of a log.
type generator struct {
	rnd *rand.Rand
	at  time.Time
	// parts: some records are parts of a line.
	parts bool
}

// log makes a log of n records, and reports whether its last one is torn.
func (g *generator) log(n int) (text string, torn bool) {
	var b strings.Builder
	for range n {
		text := g.text()
		b.WriteString(g.head() + text)
		// Else it was torn, and the next one was appended to it. A torn end without a text is not shown.
		if text == "" || g.rnd.IntN(12) > 0 {
			b.WriteByte('\n')
		}
	}
	if g.rnd.IntN(2) == 0 {
		b.WriteString(g.head() + "the end")
	}
	text = b.String()
	return text, text != "" && !strings.HasSuffix(text, "\n")
}

func (g *generator) head() string {
	g.at = g.at.Add(time.Duration(g.rnd.Int64N(int64(2 * time.Second))))
	at := g.at.In(time.FixedZone("", (g.rnd.IntN(5)-2)*3600))
	stream := []string{"stdout", "stdout", "stderr"}[g.rnd.IntN(3)]
	tags := []string{"F", "F", "F", "F:x", "later"}
	if g.parts {
		tags = append(tags, "P", "P", "P:x")
	}
	return fmt.Sprintf("%s %s %s ", at.Format(time.RFC3339Nano), stream, tags[g.rnd.IntN(len(tags))])
}

func (g *generator) text() string {
	switch g.rnd.IntN(10) {
	case 0:
		return ""
	case 1:
		return strings.Repeat("long ", g.rnd.IntN(16<<10/5))
	case 2:
		return "\x1b[1mcolour\x1b[0m \r half a line"
	case 3:
		return " \xff\x00 é 2026-01-01T00:00:00Z stdout F quoted"
	}
	return fmt.Sprintf("line %d", g.rnd.IntN(1000))
}
