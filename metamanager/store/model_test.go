package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// model is what a store promises to hold, without a file.
type model struct {
	rows, notes map[string]string
	outbox      []Report // in order; Seq and First are not compared
}

func (m *model) clone() *model {
	return &model{rows: maps.Clone(m.rows), notes: maps.Clone(m.notes), outbox: slices.Clone(m.outbox)}
}

func (m *model) find(key string) int {
	return slices.IndexFunc(m.outbox, func(r Report) bool { return r.Key == key })
}

// step makes one operation by chance, for the store and for the model. known are the reports that the store
// told of, some of them replaced since.
func (m *model) step(r *rand.Rand, i int, known []Report) Op {
	key, text := fmt.Sprintf("a/pod/p%d", r.IntN(12)), fmt.Sprint(i-r.IntN(3))
	contains := func(old []byte) bool { return bytes.Contains(old, []byte("1")) }
	old, there := m.rows[key]
	switch r.IntN(9) {
	case 0:
		delete(m.rows, key)
		return Delete(key)
	case 1:
		if there && contains([]byte(old)) {
			delete(m.rows, key)
		}
		return DeleteIf(key, contains)
	case 2:
		if !there || contains([]byte(old)) {
			m.rows[key] = text
		}
		return UpsertIf(meta(key, text), contains)
	case 3, 4:
		if at := m.find(key); at >= 0 {
			if string(m.outbox[at].Value) == text {
				return OutboxPut(key, []byte(text))
			}
			m.outbox = slices.Delete(m.outbox, at, at+1)
		}
		m.outbox = append(m.outbox, Report{Key: key, Value: []byte(text)})
		return OutboxPut(key, []byte(text))
	case 5:
		if len(known) == 0 {
			return OutboxAck(key, 0)
		}
		k := known[r.IntN(len(known))]
		// A report is the same as long as its text is: putting the same again is not a new one.
		return OutboxAck(k.Key, k.Seq)
	case 6:
		m.notes[key] = text
		return AgentSet(key, text)
	case 7:
		delete(m.notes, key)
		return AgentDelete(key)
	}
	m.rows[key] = text
	return Upsert(meta(key, text))
}

// TestAgainstModel: random groups of operations, some of which fail as a whole, and reopenings do what maps do.
func TestAgainstModel(t *testing.T) {
	seeds, groups := uint64(1), 200
	if *long {
		seeds, groups = 4, 400
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edgecore.db")
			r := rand.New(rand.NewPCG(seed, 4))
			m := &model{rows: map[string]string{}, notes: map[string]string{}}
			s, _, err := Open(t.Context(), path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var known []Report
			for i := range groups {
				m = group(t, s, m, r, i, known)
				now, err := s.Outbox(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				known = append(now, known[:min(len(known), 20)]...)
				if i%40 == 39 {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					if s, _, err = Open(t.Context(), path, Options{}); err != nil {
						t.Fatal(err)
					}
				}
				compare(t, s, m)
				if t.Failed() {
					t.FailNow()
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// group applies one to four operations together; one group in ten has one that fails, and changes nothing. It
// returns the model afterwards.
func group(t *testing.T, s *Store, m *model, r *rand.Rand, i int, known []Report) *model {
	t.Helper()
	next := m.clone()
	var ops []Op
	for range 1 + r.IntN(4) {
		op := next.step(r, i, known)
		if op.kind == opOutboxAck {
			// Acks go alone: what they do depends on seqs, which only the store knows.
			acknowledge(t, s, m, op)
			return m
		}
		ops = append(ops, op)
	}
	if r.IntN(10) == 0 {
		if err := s.Apply(t.Context(), append(ops, Op{kind: 99})...); !errors.Is(err, errBadOp) {
			t.Fatalf("Apply of a group with an unknown operation: %v, want %v", err, errBadOp)
		}
		return m
	}
	apply(t, s, ops...)
	return next
}

// acknowledge applies an ack, and takes the report out of the model if it was the one that is there.
func acknowledge(t *testing.T, s *Store, m *model, op Op) {
	t.Helper()
	before, err := s.Outbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, op)
	if slices.ContainsFunc(before, func(r Report) bool { return r.Key == op.meta.Key && r.Seq == op.seq }) {
		at := m.find(op.meta.Key)
		m.outbox = slices.Delete(m.outbox, at, at+1)
	}
}

func compare(t *testing.T, s *Store, m *model) {
	t.Helper()
	list, err := s.List(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, row := range list {
		rows[row.Key] = string(row.Value)
	}
	outbox, err := s.Outbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range outbox {
		outbox[i].Seq, outbox[i].First = 0, 0
	}
	notes := map[string]string{}
	for i := range 12 {
		key := fmt.Sprintf("a/pod/p%d", i)
		v, err := s.AgentValue(t.Context(), key)
		if err == nil {
			notes[key] = v
		} else if !errors.Is(err, ErrNotFound) {
			t.Fatalf("AgentValue(%s) = %v, want a value or ErrNotFound", key, err)
		}
	}
	got := &model{rows: rows, notes: notes, outbox: append([]Report{}, outbox...)}
	want := &model{rows: m.rows, notes: m.notes, outbox: append([]Report{}, m.outbox...)}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(model{})); diff != "" {
		t.Errorf("store mismatch (-want +got):\n%s", diff)
	}
}
