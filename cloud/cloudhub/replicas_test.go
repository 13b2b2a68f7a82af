package cloudhub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

// replicas is a model of cloudcores that share the record of one node: each reads it late, writes it late, and may
// start again.
type replicas struct {
	now     time.Time
	history []Record // of the Node: the last one is what it says
	all     []*replica
	found   int
	written int
	log     []string
}

type replica struct {
	clones
	name    int
	read    int // how much of the history its cache has
	session wire.Instance
	dials   []dialled
}

// dialled is a connection that a replica has accepted and not judged yet.
type dialled struct {
	instance wire.Instance
	at       time.Time
}

const modelNode = "n1"

func newReplicas(n int) *replicas {
	m := &replicas{now: time.Unix(1e9, 0)}
	for i := range n {
		m.all = append(m.all, &replica{name: i})
	}
	return m
}

func (m *replicas) say(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

// accept has a replica accept a connection; it reports whether there is a session then.
func (m *replicas) accept(r *replica, d dialled) bool {
	rival := r.session.Known() && r.session != d.instance
	found := r.arrive(caller{node: modelNode, instance: d.instance, accepted: d.at}, rival, 10)
	m.say("replica %d judges %c of %v: %+v", r.name, d.instance[0], d.at.Sub(time.Unix(1e9, 0)), found)
	if found.cloned {
		m.found++
	}
	if !found.refuse {
		r.session = d.instance
	}
	return !found.refuse
}

// deliver has a replica see the next change of the Node, if there is one.
func (m *replicas) deliver(r *replica) {
	if r.read == len(m.history) {
		return
	}
	m.see(r, m.history[r.read])
	r.read++
}

func (m *replicas) see(r *replica, record Record) {
	m.say("replica %d reads %c", r.name, record.Instance[0])
	if r.clones.read(modelNode, record, m.now) && r.session != record.Instance {
		r.session = wire.Instance{}
	}
}

// write has a replica write the record, if it has to.
func (m *replicas) write(r *replica) {
	var have Record
	if r.read > 0 {
		have = m.history[r.read-1]
	}
	for range 2 {
		if !r.session.Known() {
			return
		}
		next, wait, gone := r.next(modelNode, r.session, have, m.now)
		if gone {
			r.session = wire.Instance{}
		}
		if !next.Known() || wait > 0 {
			return
		}
		newest := Record{}
		if len(m.history) > 0 {
			newest = m.history[len(m.history)-1]
		}
		if newest == have {
			m.say("replica %d writes %c", r.name, next.Instance[0])
			m.history = append(m.history, next)
			m.written++
			m.see(r, next)
			return
		}
		have = newest // a conflict
		m.see(r, have)
	}
}

// restart has a replica lose what it knows.
func (m *replicas) restart(r *replica) {
	m.say("replica %d starts again", r.name)
	*r = replica{name: r.name, read: len(m.history)}
	if r.read > 0 {
		m.see(r, m.history[r.read-1])
	}
}

// step lets something happen that is not the node's doing.
func (m *replicas) step(random *rand.Rand) {
	r := m.all[random.IntN(len(m.all))]
	switch random.IntN(8) {
	case 0, 1, 2:
		m.deliver(r)
	case 3, 4:
		m.write(r)
	case 5, 6:
		if len(r.dials) > 0 {
			i := random.IntN(len(r.dials))
			d := r.dials[i]
			r.dials = slices.Delete(r.dials, i, i+1)
			m.accept(r, d)
		}
	case 7:
		m.now = m.now.Add(time.Duration(random.IntN(8000)) * time.Millisecond)
	}
	m.now = m.now.Add(time.Millisecond)
}

// TestOneDevice: one device is never taken for two, in whatever order its connections and restarts become known to the
// cloudcores, and however late.
func TestOneDevice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		m := newReplicas(1 + random.IntN(3))
		device := wire.Instance{'A'}
		for range 300 {
			m.now = m.now.Add(time.Millisecond)
			switch random.IntN(12) {
			case 0: // its agent starts again; sessions that were there may go on half-open
				device[0]++
				for _, r := range m.all {
					if random.IntN(2) == 0 {
						r.session = wire.Instance{}
					}
				}
			case 1, 2, 3:
				r := m.all[random.IntN(len(m.all))]
				r.dials = append(r.dials, dialled{device, m.now})
			case 4:
				if random.IntN(10) == 0 {
					m.restart(m.all[random.IntN(len(m.all))])
				}
			default:
				m.step(random)
			}
			if device[0] == 'Z' {
				break
			}
		}
		if m.found > 0 {
			t.Fatalf("seed %d: %d devices were found to be cloned, want none\n%s", seed, m.found, lines(m.log))
		}
	}
}

// TestTwoDevices: two devices with one certificate are found, whichever cloudcores they are connected to.
func TestTwoDevices(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 1))
		m := newReplicas(1 + random.IntN(3))
		devices := []wire.Instance{{'A'}, {'B'}}
		for range 3000 {
			for i := range devices {
				connected := slices.ContainsFunc(m.all, func(r *replica) bool { return r.session == devices[i] })
				dials := slices.ContainsFunc(m.all, func(r *replica) bool {
					return slices.ContainsFunc(r.dials, func(d dialled) bool { return d.instance == devices[i] })
				})
				if !connected && !dials && random.IntN(4) == 0 {
					r := m.all[random.IntN(len(m.all))]
					r.dials = append(r.dials, dialled{devices[i], m.now})
				}
			}
			if m.step(random); m.found > 0 {
				break
			}
		}
		if m.found == 0 {
			t.Fatalf("seed %d: no cloned device was found, want one\n%s", seed, lines(m.log))
		}
	}
}

// TestRecordedOnce: a device that connects again and again, here and there, is written once for each run of its agent.
func TestRecordedOnce(t *testing.T) {
	t.Parallel()
	m := newReplicas(2)
	device := wire.Instance{'A'}
	for run := 1; run <= 5; run++ {
		for range 20 {
			for _, r := range m.all {
				if !m.accept(r, dialled{device, m.now}) {
					t.Fatalf("a connection of run %d was refused, want it let in", run)
				}
				m.now = m.now.Add(recordPeriod)
				m.write(r)
				for _, other := range m.all {
					m.deliver(other)
				}
				if run == 3 {
					m.restart(r)
				}
			}
		}
		if m.written != run {
			t.Errorf("%d records after %d runs of the agent, want one for each", m.written, run)
		}
		device[0]++
	}
	for _, r := range m.all {
		r.session = wire.Instance{}
	}
	for i := range byte(100) { // a node that invents runs
		m.accept(m.all[0], dialled{wire.Instance{i + 1, 'X'}, m.now})
		m.write(m.all[0])
		m.now = m.now.Add(recordPeriod / 10)
	}
	if got := m.written - 5; got > 11 {
		t.Errorf("%d records in %v, want at most one in %v", got, 10*recordPeriod, recordPeriod)
	}
}

func lines(log []string) string { return strings.Join(log, "\n") }
