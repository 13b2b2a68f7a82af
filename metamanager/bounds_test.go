package metamanager

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/metamanager/answer"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// allocatedMost is what an object of a few MB may take in all, garbage included.
const allocatedMost = 256 << 20

// answering is a bus on which the cloud has one answer to everything.
type answering struct {
	dropping
	content []byte
}

func (a answering) SendSync(_ context.Context, _ string, m *model.Message) (*model.Message, error) {
	return m.Respond(a.content), nil
}

// ways are those on which an object gets into this module; each yields what edged is handed.
var ways = []string{"push", "answer", "list", "report", "inventory", "row", "token"}

// carryIn brings an object in on one of the ways.
func carryIn(ctx context.Context, s *store.Store, way, typ string, data []byte) (handed []byte) {
	m := New(answering{content: data}, s, Options{})
	m.link.set(Link{Connected: true, Features: wire.AllFeatures()})
	key := resource.Key{Namespace: "a", Type: typ, Name: "one"}
	var out []byte
	switch way {
	case "push":
		if _, err := m.executeOnce(ctx, model.New("edgecontroller", model.GroupResource, model.OpInsert, key.String(),
			data)); err == nil {
			out = data
		}
	case "answer":
		out, _ = m.remote(ctx, cloudFirst, key, model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery,
			key.String(), nil))
	case "list":
		key.Name = ""
		out, _ = m.remote(ctx, cloudFirst, key, model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery,
			key.String(), nil))
	case "report":
		_ = answer.Failure(data)
	case "inventory":
		_, _ = m.tellInventory(ctx, syncFirst)
	case "token":
		key.Type = resource.TypeServiceAccountToken
		out, _ = m.remote(ctx, hereFirst, key, model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery,
			key.String(), []byte(`{"spec":{"audiences":null}}`)))
	case "row": // of an older version, or damaged
		if err := s.Apply(ctx, store.Upsert(store.Meta{Key: key.String(), Type: typ, Value: data})); err != nil {
			return nil
		}
		_, _ = m.inventory(ctx)
		out, _ = m.executeOnce(ctx, model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, key.String(), nil))
		if _, err := m.executeOnce(ctx, model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, "null/podlist",
			nil)); err != nil {
			return nil
		}
	}
	return out
}

// inflated is a text of about 4 MB.
func inflated(prefix, unit, suffix string) []byte {
	if unit == "" {
		unit = " "
	}
	return []byte(prefix + strings.Repeat(unit, (4<<20)/len(unit)) + suffix)
}

// hostile are objects that are small on the wire and large in memory.
var hostile = []struct{ way, typ, prefix, unit, suffix string }{
	{"push", "pod", `{"metadata":{"name":"one","uid":"u"},"spec":{"containers":[{}`, `,{}`, `]}}`},
	{"push", "pod", `{"metadata":{"name":"one","uid":"u"},"spec":{"containers":[0`, `,null`, `]}}`},
	{"push", "pod", `"{\"metadata\":{\"name\":\"one\",\"uid\":\"u\"},\"spec\":{\"volumes\":[{}`, `,{}`, `]}}"`},
	{"push", "configmap", `{"metadata":{"name":"one","uid":"u"},"data":{"x":""`, `,"k":""`, `}}`},
	{"push", "pod", `{"metadata":{"name":"one","uid":"u"},"spec":{"containers":[{"command":[""`, `,""`, `]}]}}`},
	{"answer", "persistentvolume", `{"metadata":{"name":"one","uid":"u"},"spec":{"mountOptions":[""`, `,""`, `]}}`},
	{"answer", "persistentvolume", `{"ErrStatus":{"details":{"causes":[{}`, `,{}`, `]}}}`},
	{"answer", "pod", `{"metadata":{"name":"one","uid":"u"},"spec":{"containers":[{}`, `,{}`, `]}}`},
	{"list", "clustertrustbundle", `[0`, `,0`, `]`},
	{"list", "clustertrustbundle", `[{"metadata":{"name":"x"}}`, `,{"metadata":{"name":"x"}}`, `]`},
	{"report", "podpatch", `{"Err":{"ErrStatus":{"details":{"causes":[{}`, `,{}`, `]}}}}`},
	{"inventory", "", `{"synced":true,"report":[""`, `,""`, `]}`},
	{"token", "", `{"spec":{"audiences":[""`, `,""`, `]}}`},
	{"row", "pod", `{"metadata":{"name":"one","uid":"u"},"spec":{"containers":[{}`, `,{}`, `]}}`},
	{"row", "pod", `{"metadata":{"name":"one","uid":"u"},"x":[{}`, `,[]`, `]}`},
	{"row", "podpatch", `{"metadata":{"uid":"u"},"status":{"containerStatuses":[{}`, `,{}`, `]}}`},
	{"row", "podpatch", `{"metadata":{"uid":"u"},"status":{"conditions":[0`, `,null`, `]}}`},
}

func checkAllocated(t *testing.T, s *store.Store, way, typ string, data []byte) {
	t.Helper()
	got := membound.Allocated(func() {
		if handed := carryIn(t.Context(), s, way, typ, data); typ == "pod" && handed != nil {
			_, _ = metaclient.DecodePod(handed)
		}
	})
	if got > allocatedMost {
		t.Errorf("%s of a %s of %d bytes (%.60s...) took %d MB, want up to %d", way, typ, len(data), data, got>>20,
			allocatedMost>>20)
	}
}

// TestHostileObjects: an object of a few MB does not take a gigabyte.
func TestHostileObjects(t *testing.T) {
	for i, c := range hostile {
		t.Run(fmt.Sprintf("%s %s %d", c.way, c.typ, i), func(t *testing.T) {
			checkAllocated(t, openStore(t), c.way, c.typ, inflated(c.prefix, c.unit, c.suffix))
		})
	}
}

// TestLargeObjects: what the API server has at most gets in.
func TestLargeObjects(t *testing.T) {
	s := openStore(t)
	text := strings.Repeat("x", 1<<20)
	var data, labels []string
	for i := range 20_000 {
		data = append(data, fmt.Sprintf(`"key-%d":"value"`, i))
	}
	for i := range 500 {
		labels = append(labels, fmt.Sprintf(`"f:metadata":{"f:labels":{"f:label-%d":{}}}`, i))
	}
	for typ, object := range map[string]string{
		"configmap": `{"metadata":{"name":"one","uid":"u"},"data":{"x":"` + strings.ReplaceAll(text, "x", `\u003c`) +
			`"}}`,
		"secret": `{"metadata":{"name":"one","uid":"u"},"data":{` + strings.Join(data, ",") + `}}`,
		"pod": `{"metadata":{"name":"one","uid":"u","managedFields":[{` + strings.Join(labels, ",") +
			`}],"annotations":{"x":"` + text + `"}}}`,
	} {
		if !json.Valid([]byte(object)) {
			t.Fatalf("json.Valid of the %s = false, want true", typ)
		}
		if got := carryIn(t.Context(), s, "push", typ, []byte(object)); got == nil {
			t.Errorf("a %s of %d bytes was refused, want it taken", typ, len(object))
		}
	}
}

func FuzzHostileObjects(f *testing.F) {
	for i, c := range hostile {
		f.Add(uint8(i), c.typ, c.prefix, c.unit, c.suffix)
	}
	dir := f.TempDir()
	s, _, err := store.Open(context.Background(), filepath.Join(dir, "edgecore.db"), store.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, way uint8, typ, prefix, unit, suffix string) {
		if len(prefix)+len(unit)+len(suffix) > 1<<20 {
			return // the wire has a limit
		}
		checkAllocated(t, s, ways[int(way)%len(ways)], typ, inflated(prefix, unit, suffix))
	})
}
