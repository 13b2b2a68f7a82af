package wire

import (
	"bytes"
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func version(t *testing.T, obj string) string {
	t.Helper()
	v, err := Version([]byte(obj))
	if err != nil {
		t.Fatalf("%s: %v", obj, err)
	}
	if len(v) != 12 {
		t.Fatalf("version %q has %d characters, want 12", v, len(v))
	}
	return v
}

func TestVersionLeavesOut(t *testing.T) {
	const base = `{"metadata":{"name":"a"},"spec":{"x":1}}`
	for _, same := range []string{
		`{"spec":{"x":1},"metadata":{"name":"a"}}`,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"x":1}}`,
		`{"metadata":{"name":"a","resourceVersion":"9","generation":3,"managedFields":[{"manager":"m"}],"selfLink":"/x"},"spec":{"x":1}}`,
		`{"metadata":{"name":"a","creationTimestamp":null,"labels":{},"finalizers":[]},"spec":{"x":1,"y":null,"z":{"deep":{}}},"status":{"phase":"Running"}}`,
	} {
		if got, want := version(t, same), version(t, base); got != want {
			t.Errorf("%s: version %s, want %s as %s has", same, got, want, base)
		}
	}
	for _, other := range []string{
		`{"metadata":{"name":"b"},"spec":{"x":1}}`,
		`{"metadata":{"name":"a"},"spec":{"x":2}}`,
		`{"metadata":{"name":"a"},"spec":{"x":1,"y":false}}`,
		`{"metadata":{"name":"a"},"spec":{"x":1,"y":0}}`,
		`{"metadata":{"name":"a","labels":{"l":""}},"spec":{"x":1}}`,
		`{"metadata":{"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"x":1}}`,
		`{"metadata":{"name":"a","uid":"u"},"spec":{"x":1}}`,
		`{"metadata":{"name":"a"},"spec":{"x":1,"resourceVersion":"1"}}`,
		`{"metadata":{"name":"a"},"spec":{"x":[{}]}}`,
	} {
		if got := version(t, other); got == version(t, base) {
			t.Errorf("%s: version %s, want another than %s has", other, got, base)
		}
	}
	// What is said of readiness gates is not the edge's.
	gated := func(status string) string {
		return version(t, `{"metadata":{"name":"a"},"spec":{"readinessGates":[{"conditionType":"g"}]},"status":`+status+
			`}`)
	}
	if open :=
		gated(`{"conditions":[{"type":"g","status":"True"}]}`); open == gated(
		`{"conditions":[{"type":"g","status":"False"}]}`) || open == gated(`{}`) {
		t.Errorf("version with an open readiness gate = %s, want another than with a closed one or none", open)
	} else if got := gated(`{"phase":"Running","conditions":[{"type":"Ready","status":"True"},` +
		`{"type":"g","status":"True","reason":"x"}]}`); got != open {
		t.Errorf("version with more than the gate in the status = %s, want %s", got, open)
	}
	for _, odd := range []string{`{"conditions":[{"type":{},"status":[]}]}`, `{"conditions":7}`, `[]`} {
		gated(odd)
	}
	version(t, `{"spec":{"readinessGates":[{"conditionType":{}},7]},"status":{"conditions":[{"type":{}},7]}}`)
	// 2^53 and its neighbour are one number to a float64.
	if got := version(t, `{"x":9007199254740992}`); got == version(t, `{"x":9007199254740993}`) {
		t.Errorf("version of 2^53 and its neighbour = %s, want two", got)
	}
	for _, bad := range []string{``, `null`, `[]`, `"x"`, `{"a":`, `{} {}`} {
		if v, err := Version([]byte(bad)); err == nil {
			t.Errorf("Version(%q) = %q, want an error", bad, v)
		}
	}
}

// TestVersionTyped: what came off the wire and what a typed client makes of it are equal.
func TestVersionTyped(t *testing.T) {
	kinds := map[string]func() any{
		"Pod": func() any { return &v1.Pod{} }, "Node": func() any { return &v1.Node{} },
		"ConfigMap": func() any { return &v1.ConfigMap{} }, "Secret": func() any { return &v1.Secret{} },
	}
	seen := map[string]int{}
	for _, data := range recorded(t) {
		m, err := DecodeJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		var head struct{ Kind string }
		if json.Unmarshal(m.ContentData(), &head) != nil || kinds[head.Kind] == nil {
			continue
		}
		obj := kinds[head.Kind]()
		if err := json.Unmarshal(m.ContentData(), obj); err != nil {
			t.Fatal(err)
		}
		typed, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		seen[head.Kind]++
		if got, want := version(t, string(typed)), version(t, string(m.ContentData())); got != want {
			t.Errorf("%s: version %s of\n%s\nwant %s of\n%s", m.Route.Resource, got, typed, want, m.ContentData())
		}
	}
	for kind := range kinds {
		if seen[kind] == 0 {
			t.Errorf("recorded %s = 0, want some", kind)
		}
	}
}

func FuzzVersion(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","labels":{"x":null}},"spec":[{},[]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Version(data)
		if err != nil || bytes.Contains(data, []byte(`"nothing"`)) || bytes.Contains(data, []byte(`"empty"`)) ||
			bytes.Contains(data, []byte(`\u`)) {
			return
		}
		var fields map[string]any
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := d.Decode(&fields); err != nil {
			t.Fatal(err)
		}
		fields["apiVersion"], fields["nothing"], fields["empty"] = "v9", nil, map[string]any{"nothing": nil}
		more, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Version(more); err != nil || again != v {
			t.Errorf("version with empty fields = %q, %v; want %q", again, err, v)
		}
	})
}

func TestInventory(t *testing.T) {
	m, err := NewInventory([]Held{{Key: "default/pod/a", UID: "u", Version: "v"}})
	if err != nil || string(m.Content) != `{"objects":[{"k":"default/pod/a","u":"u","v":"v"}]}` || !IsInventory(m) {
		t.Errorf("NewInventory = %+v with %s, %v; want default/pod/a in an inventory", m, m.Content, err)
	}
	if m, err := NewInventory(nil); err != nil || string(m.Content) != `{"objects":[]}` {
		t.Errorf("NewInventory(nil) = %s, %v; want no objects", m.Content, err)
	}
}
