package runtimelimit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// model is a runtime in simulated time. It works on n calls at once with the total speed of parallel(n) calls that run
// alone.
type model struct {
	q        *queue
	now      time.Time
	parallel func(n int) float64
	// work is how long a call of each kind takes alone, in seconds.
	work [kinds]float64
	rand *rand.Rand
	// left is the work that is left of each running call.
	left map[*call]float64
	done func(*call)
}

func newModel(cpus int, parallel func(int) float64) *model {
	return &model{
		q:        newQueue(cpus),
		now:      time.Unix(1e9, 0),
		parallel: parallel,
		work:     [kinds]float64{RunPodSandbox: 0.120, CreateContainer: 0.030, StartContainer: 0.050},
		rand:     rand.New(rand.NewPCG(1, 2)),
		left:     map[*call]float64{},
		done:     func(*call) {},
	}
}

// peaks returns the parallel function of a runtime that is fastest with peak calls at once, and slower with more.
func peaks(peak float64) func(int) float64 {
	return func(n int) float64 { return min(float64(n), peak) / (1 + 0.02*max(0, float64(n)-peak)) }
}

func (m *model) take() {
	for _, c := range m.q.granted {
		m.left[c] = m.work[c.kind] * (0.7 + 0.6*m.rand.Float64())
	}
	m.q.granted = nil
}

// step goes on to the next end of a call, or time at which calls stop counting. It returns false if there is none.
func (m *model) step() bool {
	m.take()
	if len(m.left) == 0 && m.q.next().IsZero() {
		return false
	}
	speed := m.parallel(len(m.left)) / max(float64(len(m.left)), 1)
	var first *call
	for _, c := range m.q.running { // in the order in which they were granted
		if left, ok := m.left[c]; ok && (first == nil || left < m.left[first]) {
			first = c
		}
	}
	after := time.Duration(math.MaxInt64)
	if first != nil && !math.IsInf(m.left[first], 1) {
		after = time.Duration(m.left[first] / speed * float64(time.Second))
	}
	expires := false
	if next := m.q.next(); !next.IsZero() && next.Sub(m.now) < after {
		after, expires = next.Sub(m.now), true
	}
	if after == math.MaxInt64 {
		return false
	}
	m.now = m.now.Add(after)
	for c := range m.left {
		m.left[c] -= after.Seconds() * speed
	}
	if expires {
		m.q.expire(m.now)
		return true
	}
	delete(m.left, first)
	m.q.removeCall(m.now, first, true)
	m.done(first)
	return true
}

// burst starts pods, and returns how long it took until the first and the last ran.
func (m *model) burst(prefix string, pods int) (first, last time.Duration) {
	began, ran := m.now, 0
	m.done = func(c *call) {
		if c.kind < StartContainer {
			m.q.arrive(m.now, c.kind+1, c.owner)
			return
		}
		if ran++; ran == 1 {
			first = m.now.Sub(began)
		}
	}
	for i := range pods {
		m.q.arrive(m.now, RunPodSandbox, Owner{UID: types.UID(fmt.Sprintf("%s-%d", prefix, i))})
	}
	for ran < pods && m.step() {
	}
	m.now = m.now.Add(time.Second)
	return first, m.now.Sub(began) - time.Second
}

// beside returns the parallel function of a runtime that shares cpus processors with other programs.
func beside(cpus, others float64) func(int) float64 {
	return func(n int) float64 { return min(float64(n), cpus*float64(n)/(float64(n)+others)) }
}

func TestFindsTheBestLevel(t *testing.T) {
	for name, tc := range map[string]struct {
		cpus     int
		parallel func(int) float64
		low, top int
	}{
		"one processor":                      {1, peaks(1), 2, 2},
		"two processors":                     {2, peaks(2), 4, 4},
		"two processors and a slow disk":     {2, peaks(4), 4, 7},
		"four processors":                    {4, peaks(4), 4, 11},
		"four processors and a slow disk":    {4, peaks(8), 6, 16},
		"one processor that mostly waits":    {1, peaks(8), 6, 11},
		"sixteen processors that share work": {16, peaks(2), 4, 11},
		"more than the limit ever allows":    {4, peaks(40), 16, 16},
		"two processors shared with two":     {2, beside(2, 2), 4, 7},
		"two processors that are very busy":  {2, beside(2, 30), 14, 16},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(tc.cpus, tc.parallel)
			best := 0.0
			for n := 2; n <= maxLimit; n++ {
				best = max(best, tc.parallel(n))
			}
			var last time.Duration
			for i := range 10 {
				_, last = m.burst(fmt.Sprint(i), 60)
				if got := m.q.levels[starts].current(); i > 1 && (got < tc.low || got > tc.top) {
					t.Errorf("limit %d after %d bursts, want %d to %d", got, i+1, tc.low, tc.top)
				}
			}
			work := m.work[RunPodSandbox] + m.work[CreateContainer] + m.work[StartContainer]
			if floor := 60 * work / best; last.Seconds() > 1.25*floor+work {
				t.Errorf("a burst takes %v, want at most 1.25 times %.2f s", last, floor)
			}
		})
	}
}

func TestFollowsChanges(t *testing.T) {
	m := newModel(4, peaks(8))
	limit := func() int {
		for i := range 4 {
			m.burst(fmt.Sprint(m.now.UnixNano(), i), 60)
		}
		return m.q.levels[starts].current()
	}
	fast := limit()
	m.parallel = peaks(1) // one processor is left
	slow := limit()
	if fast < 6 || slow > 5 {
		t.Errorf("limit %d with eight at once, %d with one; want at least 6 and at most 5", fast, slow)
	}
	m.parallel = peaks(8)
	if again := limit(); again < 6 {
		t.Errorf("limit %d when it is fast again, want at least 6", again)
	}
	for k := range m.work { // a slower disk: each call takes longer, with as many at once
		m.work[k] *= 5
	}
	if slower := limit(); slower < 6 {
		t.Errorf("limit %d when each call takes five times as long, want at least 6", slower)
	}
}

// A limit makes the first pods of a burst start earlier, and the last one not later.
func TestBurst(t *testing.T) {
	limited := newModel(2, peaks(2))
	first, last := limited.burst("limited", 30)
	free := newModel(2, peaks(2))
	free.q.levels = [phases]level{{start: 30, limit: 30}, {start: 30, limit: 30}}
	freeFirst, freeLast := free.burst("free", 30)
	if first > freeFirst/3 || last > freeLast {
		t.Errorf("the first pod starts after %v and the last after %v; without a limit after %v and %v", first, last,
			freeFirst, freeLast)
	}
}

// Calls that never return delay others only until they have taken much longer than usual.
func TestNothingStarves(t *testing.T) {
	m := newModel(2, peaks(4))
	m.burst("before", 30)
	began := m.now
	m.work[RunPodSandbox] = math.Inf(1)
	var hung []*call
	for i := range 40 {
		hung = append(hung, m.q.arrive(m.now, RunPodSandbox, Owner{UID: types.UID(fmt.Sprint("hung", i))}))
	}
	for len(m.q.waiting) > 0 {
		if !m.step() {
			t.Fatalf("%d calls wait for ever", len(m.q.waiting))
		}
	}
	if took := m.now.Sub(began); took > 40*countsMax {
		t.Errorf("all calls were made after %v", took)
	}
	for _, c := range hung {
		m.q.removeCall(m.now, c, false)
	}
	m.left = map[*call]float64{}
	if m.q.counted[starts] != 0 || m.q.critical[starts] != 0 || len(m.q.running) != 0 {
		t.Errorf("%d calls count, %d run when all have returned; want none", m.q.counted[starts], len(m.q.running))
	}
}

// After any sequence of events the counts are right, and calls run while others wait.
func TestRandomCalls(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	q, now := newQueue(2), time.Unix(1e9, 0)
	var all []*call
	for range 20000 {
		now = now.Add(time.Duration(r.IntN(100)) * time.Millisecond)
		switch r.IntN(5) {
		case 0, 1:
			o := Owner{
				UID:      types.UID(fmt.Sprint(r.IntN(50))),
				priority: r.Int32N(3),
				class:    background + class(r.IntN(4)),
			}
			all = append(all, q.arrive(now, Kind(r.IntN(int(kinds))), o))
		case 2, 3:
			if len(all) > 0 {
				i := r.IntN(len(all))
				q.removeCall(now, all[i], r.IntN(4) > 0)
				all = slices.Delete(all, i, i+1)
			}
		default:
			q.expire(now)
		}
		q.granted = nil
		var counted, crit [phases]int
		for _, c := range q.running {
			if c.counted {
				counted[c.kind.phase()]++
			}
			if c.counted && c.owner.class == critical {
				crit[c.kind.phase()]++
			}
		}
		if counted != q.counted || crit != q.critical || len(q.running)+len(q.waiting) != len(all) {
			t.Fatalf("counts %v, %v critical, %d calls; want %v, %v, %d", q.counted, q.critical,
				len(q.running)+len(q.waiting), counted, crit, len(all))
		}
		for p := range phases {
			waits := slices.ContainsFunc(q.waiting, func(c *call) bool {
				return c.kind.phase() == p && (c.owner.class != background || !q.busy())
			})
			if waits && q.counted[p] < q.limit(p) {
				t.Fatalf("calls wait although only %d of %d run", q.counted[p], q.limit(p))
			}
		}
		if limit := q.levels[starts].limit; limit < minLimit || limit > maxLimit || math.IsNaN(limit) {
			t.Fatalf("limit %v", limit)
		}
		if len(q.last) > 50 {
			t.Fatalf("%d pods remembered", len(q.last))
		}
	}
}
