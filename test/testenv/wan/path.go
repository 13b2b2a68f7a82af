package wan

import (
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// Quality describes each direction of the slow path.
type Quality struct {
	// Delay is how long a packet is on its way: half of the round trip.
	Delay time.Duration
	// BytesPerSecond is the bandwidth; 0 is no limit.
	BytesPerSecond float64
	// Queue is how long packets may wait for the bandwidth. One that would wait longer is dropped, as in a router.
	Queue time.Duration
	// Loss is the fraction of packets that are lost, from 0 to 1.
	Loss float64
}

// inFlightMax is how many packets may be on the path in each direction.
const inFlightMax = 16 << 10

// path is the slow path.
type path struct {
	mu      sync.Mutex
	quality Quality
}

func (p *path) set(q Quality) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quality = q
}

func (p *path) get() Quality {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quality
}

// packet is a packet on its way.
type packet struct {
	data []byte
	due  time.Time
}

// forward moves the packets of one direction until a file is closed.
func (p *path) forward(to, from *os.File) {
	flight := make(chan packet, inFlightMax)
	var sender sync.WaitGroup
	sender.Go(func() {
		for one := range flight {
			time.Sleep(time.Until(one.due))
			_, _ = to.Write(one.data) // a packet that the kernel does not take is lost
		}
	})
	defer sender.Wait()
	defer close(flight)
	var line line
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		due, passes := line.pass(p.get(), n, time.Now(), rand.Float64())
		if !passes {
			continue
		}
		select {
		case flight <- packet{append([]byte(nil), buf[:n]...), due}:
		default: // as if the queue were full
		}
	}
}

// line is one direction of the path.
type line struct {
	// free is when the last packet has left the queue.
	free time.Time
}

// pass returns when a packet that is sent now arrives. If passes is false, the packet is lost: the queue is full, or
// chance, a random number from 0 to 1, is less than the loss.
func (l *line) pass(q Quality, size int, now time.Time, chance float64) (due time.Time, passes bool) {
	if chance < q.Loss {
		return time.Time{}, false
	}
	leaves := now
	if q.BytesPerSecond > 0 {
		if l.free.After(now) {
			leaves = l.free
		}
		if leaves.Sub(now) > q.Queue {
			return time.Time{}, false
		}
		leaves = leaves.Add(time.Duration(float64(size) / q.BytesPerSecond * float64(time.Second)))
		l.free = leaves
	}
	return leaves.Add(q.Delay), true
}
