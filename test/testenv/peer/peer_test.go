package peer

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestWrong(t *testing.T) {
	const name = "default/pod/a"
	for what, c := range map[string]struct {
		entry Entry
		has   *Stored
		want  string
	}{
		"nothing sent":              {entry: Entry{}},
		"on its way, and there":     {entry: Entry{Sent: 5}, has: &Stored{Version: 5}},
		"on its way, and not there": {entry: Entry{Sent: 5}},
		"acknowledged":              {entry: Entry{Sent: 5, Acked: 5}, has: &Stored{Version: 5}},
		"acknowledged, and lost":    {entry: Entry{Sent: 5, Acked: 5}, want: "is lost"},
		"the version before":        {entry: Entry{Sent: 7, Acked: 5}, has: &Stored{Version: 5}},
		"a change is lost": {
			entry: Entry{Sent: 7, Acked: 7}, has: &Stored{Version: 5}, want: "and 7 was acknowledged",
		},
		"out of nowhere": {
			entry: Entry{Sent: 7, Acked: 7}, has: &Stored{Version: 9}, want: "newest that was sent is 7",
		},
		"deletion on its way, there": {entry: Entry{
			Sent:       5,
			Acked:      5,
			Deleted:    true,
			DeleteSent: true,
		}, has: &Stored{Version: 5}},
		"deletion on its way, gone":  {entry: Entry{Sent: 5, Acked: 5, Deleted: true, DeleteSent: true}},
		"deleted here, but not told": {entry: Entry{Sent: 5, Acked: 5, Deleted: true}, want: "is lost"},
		"deletion acknowledged": {entry: Entry{
			Sent:        5,
			Acked:       5,
			Deleted:     true,
			DeleteSent:  true,
			DeleteAcked: true,
		}},
		"deletion acknowledged, and back": {entry: Entry{
			Sent:        5,
			Acked:       5,
			Deleted:     true,
			DeleteSent:  true,
			DeleteAcked: true,
		}, has: &Stored{Version: 5}, want: "is back"},
		"has to end, and is gone":      {entry: Entry{Sent: 6, Acked: 6, Ending: 6}},
		"has to end, and was not told": {entry: Entry{Sent: 5, Acked: 5, Ending: 6}, want: "is lost"},
		"has to end, and forgot it": {entry: Entry{Sent: 6, Acked: 6, Ending: 6}, has: &Stored{Version: 5},
			want: "and 6 was acknowledged"},
	} {
		has := map[string]Stored{}
		if c.has != nil {
			has[name] = *c.has
		}
		got := strings.Join(Journal{name: c.entry}.Wrong(has), "\n")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	if got := (Journal{}).Wrong(map[string]Stored{name: {Version: 1}}); !cmp.Equal(got,
		[]string{name + " is stored, and was never sent"}) {
		t.Errorf("Wrong() of what was never sent = %q, want that", got)
	}
}

// edge is the other end of a link.
type edge struct {
	t    *testing.T
	conn wire.Conn
	came chan *model.Message
	// others came while an answer was waited for.
	others []*model.Message
}

func dial(t *testing.T, ca *wiretest.CA, c *Cloud) *edge {
	t.Helper()
	conn, err := wire.DialWebSocket(t.Context(), wire.DialOptions{
		URL:      fmt.Sprintf("wss://127.0.0.1:%d/project/edge/events", c.Port()),
		TLS:      ca.ClientTLS(t, "edge"),
		Header:   http.Header{},
		Features: wire.AllFeatures(),
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{t: t, conn: conn, came: make(chan *model.Message, 100)}
	if got := conn.Features(); got != (wire.Features{}) {
		t.Errorf("Features() = %v, want none", got)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			m, err := conn.Read()
			if err != nil {
				return
			}
			e.came <- m
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close(wire.CloseNormal, "")
		<-ended
	})
	return e
}

func (e *edge) next() *model.Message {
	e.t.Helper()
	if len(e.others) > 0 {
		m := e.others[0]
		e.others = e.others[1:]
		return m
	}
	return wait.Receive(e.t, "a message", e.came)
}

func (e *edge) say(m *model.Message) {
	e.t.Helper()
	if err := e.conn.Write(m); err != nil {
		e.t.Fatal(err)
	}
}

// ask asks for something and returns the answer. What else comes meanwhile is acknowledged, and is next.
func (e *edge) ask(operation, name, content string) *model.Message {
	e.t.Helper()
	m := model.New("edged", model.GroupMeta, operation, name, json.RawMessage(content))
	e.say(m)
	before := e.others
	for e.others = nil; ; {
		got := e.next()
		if got.Header.ParentID == m.Header.ID {
			e.others = before
			return got
		}
		e.say(got.Respond(model.OK))
		before = append(before, got)
	}
}

func listen(t *testing.T) (*wiretest.CA, *Cloud) {
	t.Helper()
	ca := wiretest.NewCA(t)
	c, err := Listen(ca.ServerTLS(t), "127.0.0.1:0", "edge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return ca, c
}

func entry(t *testing.T, c *Cloud, name string, want Entry) {
	t.Helper()
	wait.Until(t, "the journal of "+name, func() error {
		if diff := cmp.Diff(want, c.Journal()[name]); diff != "" {
			return fmt.Errorf("%s (-want +got):\n%s", name, diff)
		}
		return nil
	})
}

// TestPushes: what is not acknowledged comes again over the next link, in its newest version; what is refused does not
// at once.
func TestPushes(t *testing.T) {
	ca, c := listen(t)
	l := NewLoad(c, 1, 1, "demo:1")
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	const settings, pod = "default/configmap/settings", "default/pod/web-1"
	e := dial(t, ca, c)
	first, second := e.next(), e.next()
	if first.Route.Resource != settings || first.Route.Operation != model.OpInsert || second.Route.Resource != pod {
		t.Fatalf("messages of %+v and %+v, want an insert of %s, and %s", first.Route, second.Route, settings, pod)
	}
	e.say(first.Respond(model.OK))
	e.say(second.RespondError(model.ModuleMetaManager, fmt.Errorf("disk full")))
	entry(t, c, settings, Entry{Sent: 101, Acked: 101})
	wait.Until(t, "a refusal", func() error {
		if got := c.Refused(); len(got) != 1 || !strings.Contains(got[0], "disk full") {
			return fmt.Errorf("Refused() = %q, want one of a full disk", got)
		}
		return nil
	})
	entry(t, c, pod, Entry{Sent: 102})

	again := dial(t, ca, c)
	third := again.next()
	if third.Route.Resource != pod || third.Header.ResourceVersion != "102" {
		t.Fatalf("message %+v, want version 102 of %s", third, pod)
	}
	again.say(third.Respond(model.OK))
	entry(t, c, pod, Entry{Sent: 102, Acked: 102})
	if err := c.Delete(settings); err != nil {
		t.Fatal(err)
	}
	gone := again.next()
	if gone.Route.Operation != model.OpDelete || gone.Route.Resource != settings {
		t.Fatalf("message %+v, want the deletion of %s", gone.Route, settings)
	}
	again.say(gone.Respond(model.OK))
	entry(t, c, settings, Entry{Sent: 101, Acked: 101, Deleted: true, DeleteSent: true, DeleteAcked: true})
	if _, err := c.Put(&v1.ConfigMap{ObjectMeta: meta("settings")}); err == nil {
		t.Error("Put of a name that was used before = nil, want an error")
	}
}

// TestPodsEnd: a pod that is deleted is told to end, and deleted when the edge reports that it has.
func TestPodsEnd(t *testing.T) {
	ca, c := listen(t)
	l := NewLoad(c, 1, 1, "demo:1")
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	const name = "default/pod/web-1"
	e := dial(t, ca, c)
	var pod v1.Pod
	for range 2 {
		m := e.next()
		if m.Route.Resource == name {
			if err := json.Unmarshal(m.Content, &pod); err != nil {
				t.Fatal(err)
			}
		}
		e.say(m.Respond(model.OK))
	}
	entry(t, c, name, Entry{Sent: 102, Acked: 102})
	patch := fmt.Sprintf(
		`{"metadata":{"uid":%q},"status":{"phase":"Failed","conditions":[{"type":"Ready","status":"False"}]}}`, pod.UID)
	text, _ := json.Marshal(patch)
	if got := e.ask(model.OpPatch, "default/podpatch/web-1", string(text)); !strings.Contains(string(got.Content),
		`"Err":null`) || got.Header.ResourceVersion != "102" {
		t.Errorf("answer %s of version %s, want no error and version 102", got.Content, got.Header.ResourceVersion)
	}
	if got := c.Status(name); got.Phase != v1.PodFailed || len(got.Conditions) != 1 {
		t.Errorf("Status(%q) = %+v, want Failed with one condition", name, got)
	}
	entry(t, c, name, Entry{Sent: 102, Acked: 102, Finished: true})
	if err := c.Delete(name); err != nil {
		t.Fatal(err)
	}
	told := e.next()
	if err := json.Unmarshal(told.Content, &pod); err != nil || told.Route.Operation != model.OpUpdate ||
		pod.DeletionTimestamp == nil {
		t.Fatalf("message %+v %s, %v, want an update with a deletionTimestamp", told.Route, told.Content, err)
	}
	e.say(told.Respond(model.OK))
	if got := e.ask(model.OpDelete, name, fmt.Sprintf(`{"preconditions":{"uid":%q}}`, "another")); string(
		got.Content) != `"OK"` {
		t.Errorf("answer %s, want \"OK\"", got.Content)
	}
	entry(t, c, name, Entry{Sent: 103, Acked: 103, Ending: 103, Finished: true})
	e.ask(model.OpDelete, name, fmt.Sprintf(`{"preconditions":{"uid":%q}}`, pod.UID))
	gone := e.next()
	if gone.Route.Operation != model.OpDelete || gone.Route.Resource != name {
		t.Fatalf("message %+v, want the deletion of %s", gone.Route, name)
	}
	e.say(gone.Respond(model.OK)) // for the second time, where it came before the answer
	entry(t, c, name, Entry{
		Sent:        103,
		Acked:       103,
		Ending:      103,
		Finished:    true,
		Deleted:     true,
		DeleteSent:  true,
		DeleteAcked: true,
	})
}

// TestAnswers: what an edge needs until it is there.
func TestAnswers(t *testing.T) {
	ca, c := listen(t)
	e := dial(t, ca, c)
	for _, r := range []struct{ operation, name, content, want string }{
		{model.OpQuery, "null/node/edge", "null", `"reason":"NotFound"`},
		{model.OpInsert, "null/node/edge", `{"metadata":{"name":"edge"}}`, `"resourceVersion":"101"`},
		{model.OpQuery, "null/node/edge", "null", `"uid":`},
		{model.OpPatch, "null/nodepatch/edge", `"{}"`, `"Err":null`},
		{model.OpQuery, "kube-node-lease/lease/edge", "null", `"reason":"NotFound"`},
		{model.OpInsert, "kube-node-lease/lease/edge", `{"metadata":{"name":"edge"}}`, `"Err":null`},
		{model.OpQuery, "default/configmap/none", "null", `"reason":"NotFound"`},
		{model.OpQuery, "default/unicorn/none", "null", `knows no such thing`},
		{model.OpQuery, "nonsense", "null", `want`},
	} {
		if got := e.ask(r.operation, r.name, r.content); !strings.Contains(string(got.Content), r.want) {
			t.Errorf("%s %s: answer %s, want %s", r.operation, r.name, got.Content, r.want)
		}
	}
	stranger := ca.ClientTLS(t, "another")
	if conn, err := wire.DialWebSocket(t.Context(), wire.DialOptions{
		URL: fmt.Sprintf("wss://127.0.0.1:%d/p/edge/events", c.Port()), TLS: stranger,
	}); err == nil {
		_ = conn.Close(wire.CloseNormal, "")
		t.Error("dial with another node's certificate = nil, want an error")
	}
}

// TestTokens: a pod that is there gets a token, and no other does.
func TestTokens(t *testing.T) {
	ca, c := listen(t)
	pod := &v1.Pod{ObjectMeta: meta("web")}
	if _, err := c.Put(pod); err != nil {
		t.Fatal(err)
	}
	e := dial(t, ca, c)
	request := func(uid types.UID) *model.Message {
		return e.ask(model.OpQuery, "default/serviceaccounttoken/default",
			fmt.Sprintf(
				`{"spec":{"expirationSeconds":3607,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"web","uid":%q}}}`, uid))
	}
	const lifetime = 3607 * time.Second
	before := time.Now().Truncate(time.Second) // a timestamp has whole seconds
	var got authenticationv1.TokenRequest
	if err := json.Unmarshal(request(pod.UID).Content, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Status.Token) != tokenLength {
		t.Errorf("a token of %d bytes, want %d", len(got.Status.Token), tokenLength)
	}
	expires, after := got.Status.ExpirationTimestamp.Time, time.Now()
	if expires.Before(before.Add(lifetime)) || expires.After(after.Add(lifetime)) {
		t.Errorf("it expires at %v, want %v after it was issued, between %v and %v", expires, lifetime, before, after)
	}
	if got := request("another"); !strings.Contains(string(got.Content), `"reason":"NotFound"`) {
		t.Errorf("answer to another pod %s, want NotFound", got.Content)
	}
}

// TestTold: who waits for a report is told of it.
func TestTold(t *testing.T) {
	ca, c := listen(t)
	pod := &v1.Pod{ObjectMeta: meta("web")}
	if _, err := c.Put(pod); err != nil {
		t.Fatal(err)
	}
	e := dial(t, ca, c)
	e.say(e.next().Respond(model.OK))
	done := make(chan v1.PodPhase)
	go func() {
		for {
			told := c.Told()
			if phase := c.Status("default/pod/web").Phase; phase != "" {
				done <- phase
				return
			}
			<-told
		}
	}()
	e.ask(model.OpPatch, "default/podpatch/web", fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Running"}}`,
		pod.UID))
	if got := wait.Receive(t, "a report", done); got != v1.PodRunning {
		t.Errorf("phase = %s, want %s", got, v1.PodRunning)
	}
}

// TestLoadIsSeeded: the same seed makes the same work, of every kind, and no more of it than there may be at a time.
func TestLoadIsSeeded(t *testing.T) {
	work := func(seed uint64) []string {
		c, err := Listen(&tls.Config{}, "127.0.0.1:0", "edge")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l := NewLoad(c, seed, 3, "a:1", "b:1")
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			if err := l.Step(); err != nil {
				t.Fatal(err)
			}
			if live := l.named(resource.TypePod, "web"); len(live) != 3 {
				t.Fatalf("pods = %v, want 3", live)
			}
		}
		var all []string
		for name, e := range c.Journal() {
			all = append(all, fmt.Sprintf("%s %d %t", name, e.Ending, e.Deleted))
		}
		slices.Sort(all)
		return all
	}
	one := work(1)
	if diff := cmp.Diff(one, work(1)); diff != "" {
		t.Errorf("work of the same seed mismatch (-want +got):\n%s", diff)
	}
	if two := work(2); cmp.Equal(one, two) {
		t.Errorf("work of another seed = %q, want other work", two)
	}
	text := strings.Join(one, "\n")
	for _, want := range []string{"configmap/conf-", "secret/key-", "pod/web-", "pod/job-", " true"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
