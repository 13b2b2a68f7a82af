// Package wire holds the golden texts of every message between edge and cloud, in both directions: what this edge and
// this cloud send, and what they have to take from a peer of KubeEdge (docs/wire.md lists them).
//
// A file of testdata is a conversation with one of our two ends, the real one, over a real WebSocket. Its lines are
//
//	> {..}           a message of the edge
//	< {..}           a message of the cloud
//	! call args      what edged asks of the edge (edge), and
//	= result         what it gets
//	+ ~ - {..}       an object that is created, updated, deleted in the API (cloud), and
//	@ type/ns/name   how the API, or the store of the edge, then has one, after =>
//	@ outbox         how many reports of the edge then wait, after =>
//	# text
//
// The peer's messages are sent as they stand; ours are compared byte by byte, but for ids and times, and -update writes
// them again: also an envelope's order of fields, an omitted field and an object's form are part of what is fixed.
// An id is @ with a letter in the peer's messages, and @ with a number, by order, in ours; a time is 0.
package wire

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var update = flag.Bool("update", false, "write what our ends send into the files of testdata")

// quiet is how long a conversation listens for messages that should not come after its last line.
const quiet = 50 * time.Millisecond

// end is one of our two ends, as a conversation sees it.
type end interface {
	// peerMark is the first character of messages to this end.
	peerMark() byte
	// send sends it a message of the peer.
	send(text string) error
	// frames are its messages.
	frames() <-chan string
	// do does what a line of another kind says. The result is what stands after it: it may take a moment to be as
	// wanted.
	do(kind byte, text, want string) (string, error)
}

// converse plays a file to an end.
func converse(t *testing.T, file string, e end) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := &conversation{t: t, ids: map[string]string{}, tokens: map[string]string{}, came: map[string]bool{}}
	var got []string
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for len(lines) > 0 && !t.Failed() {
		n := 0
		for n < len(lines) && isOurs(e, lines[n]) {
			n++
		}
		if n > 0 {
			got = append(got, c.await(e, lines[:n])...)
		} else {
			n, got = 1, append(got, c.line(e, lines[0]))
		}
		if t.Failed() {
			t.Errorf("%s: failed at %.200s, want no failure", file, lines[0])
		}
		lines = lines[n:]
	}
	for more := true; more && !t.Failed(); {
		select {
		case frame := <-e.frames():
			if !c.again(frame) {
				got = append(got, c.ours(e, frame))
			}
		case <-time.After(quiet):
			more = false
		}
	}
	text := strings.Join(got, "\n") + "\n"
	if *update && !t.Failed() {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(strings.Split(string(data), "\n"), strings.Split(text, "\n")); diff != "" && !*update {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// conversation knows which id is which.
type conversation struct {
	t           testing.TB
	ids, tokens map[string]string // token to id, and back
	numbered    int
	came        map[string]bool // the ids of our messages
}

func isOurs(e end, line string) bool {
	return line != "" && (line[0] == '>' || line[0] == '<') && line[0] != e.peerMark()
}

// await takes as many messages of ours as there are lines. What is sent side by side keeps no order: here answers are
// first, and then the rest by its resource.
func (c *conversation) await(e end, lines []string) []string {
	var answers, others, got []string
	ctx := wait.Context(c.t)
	for len(answers)+len(others) < len(lines) {
		select {
		case frame := <-e.frames():
			if c.again(frame) {
				continue
			}
			if strings.Contains(frame, `"parent_msg_id"`) {
				answers = append(answers, frame)
			} else {
				others = append(others, frame)
			}
		case <-ctx.Done():
			c.t.Errorf("%d messages came: %.300s\nwant %d: %.300s", len(answers)+len(others),
				strings.Join(append(answers, others...), "\n"), len(lines), strings.Join(lines, "\n"))
			return lines
		}
	}
	slices.SortStableFunc(others, func(a, b string) int { return strings.Compare(resourceOf(a), resourceOf(b)) })
	for _, frame := range append(answers, others...) {
		got = append(got, c.ours(e, frame))
	}
	return got
}

func resourceOf(frame string) string {
	_, after, _ := strings.Cut(frame, `"resource":"`)
	return after
}

// line plays any other line, and returns it as it was.
func (c *conversation) line(e end, line string) string {
	if line == "" || line[0] == '#' {
		return line
	}
	kind, text := line[0], strings.TrimSpace(line[1:])
	switch {
	case kind == e.peerMark():
		if err := e.send(c.bind(text)); err != nil {
			c.t.Error(err)
		}
		return line
	}
	output, want, _ := strings.Cut(text, " => ")
	result, err := e.do(kind, output, want)
	switch {
	case err != nil:
		c.t.Errorf("%.200s: %v, want no error", line, err)
	case kind == '=':
		return "= " + result
	case kind == '@':
		return "@ " + output + " => " + result
	}
	return line
}

var (
	token = regexp.MustCompile(`"@[a-z0-9]+"`)
	stamp = regexp.MustCompile(`^(\{"header":\{[^}]*"timestamp":)(\d+)`)
	// moment and online are times shortly after reportedAt.
	moment = regexp.MustCompile(`1760000\d{6}`)
	online = regexp.MustCompile(`2025-10-09T(08:5|09:)\d[0-9:.]*Z`)
	// event is the id and time within a message about devices, which may be a string; epoch names the store that has
	// counted its versions.
	event = regexp.MustCompile(`(\\?"event_id\\?":\\?")[0-9a-f-]{36}(\\?",\\?"timestamp\\?":)\d+`)
	epoch = regexp.MustCompile(`(\\?"epoch\\?":\\?")[0-9a-zA-Z-]+`)
)

// bind puts ids and a time into a message of the peer.
func (c *conversation) bind(text string) string {
	text = token.ReplaceAllStringFunc(text, func(quoted string) string {
		name := strings.Trim(quoted, `"`)
		if c.ids[name] == "" {
			c.know(name, model.NewID())
		}
		return `"` + c.ids[name] + `"`
	})
	return strings.Replace(text, `"timestamp":0`, `"timestamp":1760000000123`, 1) + "\n"
}

func (c *conversation) know(name, id string) { c.ids[name], c.tokens[id] = id, name }

// again tells of a message that came before: one whose acknowledgement takes long, on a busy machine, is sent again.
func (c *conversation) again(frame string) bool {
	var m model.Message
	if json.Unmarshal([]byte(frame), &m) != nil || !c.came[m.Header.ID] {
		c.came[m.Header.ID] = true
		return false
	}
	return true
}

// number gives a message of ours its name, unless it has one.
func (c *conversation) number(m *model.Message) {
	if c.tokens[m.Header.ID] == "" {
		c.numbered++
		c.know(fmt.Sprintf("@%d", c.numbered), m.Header.ID)
	}
}

// ours is a message of ours as it is compared.
func (c *conversation) ours(e end, frame string) string {
	c.t.Helper()
	var m model.Message
	if err := json.Unmarshal([]byte(frame), &m); err != nil {
		c.t.Fatalf("frame %s: %v, want no error", frame, err)
	}
	c.number(&m)
	if !strings.HasSuffix(frame, "}\n") || strings.Count(frame, "\n") != 1 {
		c.t.Errorf("frame = %q, want one line with its end", frame)
	}
	now := time.Now()
	text := stamp.ReplaceAllStringFunc(strings.TrimSpace(frame), func(head string) string {
		if at := time.UnixMilli(m.Header.Timestamp); now.Sub(at).Abs() > time.Hour {
			c.t.Errorf("timestamp = %d, want the time in milliseconds, about %d", m.Header.Timestamp, now.UnixMilli())
		}
		return stamp.ReplaceAllString(head, "${1}0")
	})
	if wire.IsBatch(&m) {
		carried, err := wire.Unpack(&m)
		if err != nil {
			c.t.Error(err)
		}
		for _, one := range carried {
			c.number(one)
			at := strconv.FormatInt(one.Header.Timestamp, 10)
			text = strings.ReplaceAll(text, `"timestamp":`+at, `"timestamp":0`)
		}
	}
	text = moment.ReplaceAllString(online.ReplaceAllString(text, "2025-10-09T08:53:20Z"), "1760000000000")
	text = epoch.ReplaceAllString(event.ReplaceAllString(text, "${1}@${2}0"), "${1}@")
	for id, name := range c.tokens {
		text = strings.ReplaceAll(text, `"`+id+`"`, `"`+name+`"`)
	}
	return string(map[byte]byte{'>': '<', '<': '>'}[e.peerMark()]) + " " + text
}

// files are the conversations of a folder.
func files(t *testing.T, folder string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join("testdata", folder, "*.txt"))
	if err != nil || len(list) == 0 {
		t.Fatalf("files in testdata/%s: %v, %v, want some", folder, list, err)
	}
	return list
}

// waitSteady asks until the answer is as wanted; with -update until it has been the same for a while.
func waitSteady(t testing.TB, want string, ask func() (string, error)) (now string, err error) {
	t.Helper()
	if *update {
		return steady(ask)
	}
	wait.Until(t, "an answer", func() error {
		if now, err = ask(); err != nil {
			return daemon.Fatal(err)
		}
		if now != want {
			return fmt.Errorf("it is %s, want %s", now, want)
		}
		return nil
	})
	return now, nil
}

// steady asks until the answer has been the same for 300 ms.
func steady(ask func() (string, error)) (now string, err error) {
	for same, last := 0, ""; same < 30; same, last = same+1, now {
		if now, err = ask(); err != nil {
			return "", err
		}
		if now != last {
			same = 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	return now, nil
}

func nameOf(file string) string { return strings.TrimSuffix(filepath.Base(file), ".txt") }
