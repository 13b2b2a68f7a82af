package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/simonvetter/modbus"
	"golang.org/x/sys/unix"
)

// line is what only one request may use at a time: a serial line, whatever the names by which devices find it, or the
// connection of a TCP bus. driver keeps the serial lines it has seen: no more than the machine has numbers for them.
type line struct {
	// device is the number of a serial port (st_rdev). A name is no identity: a port has several, and an adapter that
	// was plugged in again may have the name that another one had.
	device uint64
	shares map[string]*share // of a serial line, by namespace; guarded by driver.mu

	// mu is held by a share, which has one request at a time: each namespace waits for at most one request of each
	// other.
	mu     sync.Mutex
	client *modbus.ModbusClient // nil if the line is closed
	lock   *portLock            // of a serial line
	owner  *share               // the one whose settings client has
}

// share is the use of a line by a namespace.
type share struct {
	line  *line
	buses []*bus // have the same settings; guarded by driver.mu

	mu sync.Mutex // held for the time of a request
}

// hangUp closes the line; line.mu is held.
func (l *line) hangUp() {
	if l.client != nil {
		_ = l.client.Close()
		l.client = nil
	}
	l.lock.release()
	l.lock, l.owner = nil, nil
}

// hangUp closes the lines that are open for one of the shares.
func hangUp(shares []*share) {
	for _, s := range shares {
		s.line.mu.Lock()
		if s.line.owner == s {
			s.line.hangUp()
		}
		s.line.mu.Unlock()
	}
}

// join returns the share of a bus in the serial line of a device number, or an error if the namespace uses that line
// with other settings. The caller hangs up the shares that have been left when it no longer holds driver.mu.
func (d *driver) join(b *bus, device uint64) (s *share, left []*share, err error) {
	if b.share != nil && b.share.line.device == device {
		return b.share, nil, nil
	}
	left = d.part(b)
	l := d.lines[device]
	if l == nil {
		l = &line{device: device, shares: map[string]*share{}}
		d.lines[device] = l
	}
	if s = l.shares[b.id.namespace]; s != nil && !sameSettings(b, s.buses[0]) {
		for _, other := range slices.Clone(s.buses) {
			if now, err := deviceOf(other.serialPort); err == nil && now == device {
				return nil, left, fmt.Errorf("another device of namespace %s uses the same line, as %s, with other "+
					"settings: give both the same ones", b.id.namespace, other.serialPort)
			}
			left = append(left, d.part(other)...) // its name means another line now
		}
	}
	if s = l.shares[b.id.namespace]; s == nil {
		s = &share{line: l}
		l.shares[b.id.namespace] = s
	}
	s.buses = append(s.buses, b)
	b.share = s
	return s, left, nil
}

// part removes a bus from its share, which it returns if there was one; driver.mu is held.
func (d *driver) part(b *bus) (left []*share) {
	s := b.share
	if s == nil {
		return nil
	}
	s.buses = slices.DeleteFunc(s.buses, func(other *bus) bool { return other == b })
	if len(s.buses) == 0 {
		delete(s.line.shares, b.id.namespace)
	}
	b.share = nil
	return []*share{s}
}

func sameSettings(a, b *bus) bool {
	x, y := a.config, b.config
	x.URL, y.URL = "", ""
	return x == y
}

// findLine finds out which line a bus has now; b.mu is held. The file, for a serial port, stands for that port,
// whatever becomes of its name; the caller closes it.
func (b *bus) findLine() (s *share, file int, err error) {
	if b.serialPort == "" {
		b.driver.mu.Lock()
		defer b.driver.mu.Unlock()
		if b.share == nil {
			return nil, -1, net.ErrClosed
		}
		return b.share, -1, nil
	}
	file, device, err := openPath(b.serialPort)
	var left []*share
	b.driver.mu.Lock()
	if err != nil {
		left = b.driver.part(b)
	} else {
		s, left, err = b.driver.join(b, device)
	}
	b.driver.mu.Unlock()
	hangUp(left)
	if err != nil {
		closeFile(file)
	}
	return s, file, err
}

// closeFile closes a file unless it is -1.
func closeFile(file int) {
	if file >= 0 {
		_ = unix.Close(file)
	}
}

// openPath opens a serial port by name without any effect on it, and returns its device number.
func openPath(name string) (file int, device uint64, err error) {
	file, err = unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	var stat unix.Stat_t
	if err = unix.Fstat(file, &stat); err == nil && stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		err = errors.New("it is not a serial port")
	}
	if err != nil {
		_ = unix.Close(file)
		return -1, 0, err
	}
	return file, stat.Rdev, nil
}

// deviceOf returns the device number of a serial port.
func deviceOf(name string) (uint64, error) {
	file, device, err := openPath(name)
	if err == nil {
		_ = unix.Close(file)
	}
	return device, err
}

// pathOf returns the path of an open file, also of one whose name has gone.
func pathOf(file int) string { return "/proc/self/fd/" + strconv.Itoa(file) }

// portLock keeps other programs from using a serial port, also other mappers: the frames of two would mix.
type portLock struct{ file int }

var errInUse = errors.New("another program uses it")

// lockPort locks a port with flock, which others ask for. exclude makes the kernel refuse those that do not.
func lockPort(path string) (*portLock, error) {
	file, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, inUse(err)
	}
	p := &portLock{file}
	// Root may open a port that is exclusively another program's.
	if exclusive, err := unix.IoctlGetInt(file, unix.TIOCGEXCL); err == nil && exclusive != 0 {
		_ = unix.Close(file)
		return nil, errInUse
	}
	if err := unix.Flock(file, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(file)
		return nil, inUse(err)
	}
	return p, nil
}

func inUse(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EWOULDBLOCK) {
		return errInUse
	}
	return err
}

// exclude makes opening the port an error (EBUSY) for all but root, also under another file in another container.
func (p *portLock) exclude() error { return unix.IoctlSetInt(p.file, unix.TIOCEXCL, 0) }

func (p *portLock) release() {
	if p == nil {
		return
	}
	_ = unix.IoctlSetInt(p.file, unix.TIOCNXCL, 0)
	_ = unix.Close(p.file) // ends the flock, too
}
