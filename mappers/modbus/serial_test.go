package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/mappers/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/modbusserver"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestLine: namespaces that have other settings for one serial line use it in turns.
func TestLine(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(2, 77)
	port := serialLine(t, s)
	e := start(t, boiler(fmt.Sprintf(`"serialPort":%q,"baudRate":115200`, port), nil))
	e.Apply("other/device/two", elsewhere(fmt.Sprintf(`"serialPort":%q,"baudRate":9600`, port)))
	for _, value := range []uint16{77, 78} {
		s.Set(2, value)
		for _, at := range [][2]string{{"shop", "one"}, {"other", "two"}} {
			wait.Until(t, fmt.Sprintf("the value of %v", at), func() error {
				props, err := e.Properties(at[0], at[1])
				if r := props["limit"].Reported; err == nil && (r == nil || r.Value != fmt.Sprint(value)) {
					err = fmt.Errorf("it is %+v", r)
				}
				return err
			})
		}
	}
}

// TestSerial: the same device at the end of a serial line.
func TestSerial(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(2, 77)
	place := fmt.Sprintf(`"serialPort":%q,"baudRate":115200`, serialLine(t, s))
	e := start(t, boiler(place, map[string]string{"on": "true"}))
	e.await("limit", "77")
	e.await("on", "true")
	e.awaitState("online")
}

// twoNames is a serial port with the device s at its end, a link to it, and a driver that may use both.
func twoNames(t *testing.T, s *modbusserver.Server) (port *serialPort, link string, d *driver) {
	t.Helper()
	port, link = newSerialPort(t, s), filepath.Join(t.TempDir(), "usb-adapter")
	if err := os.Symlink(port.name, link); err != nil {
		t.Fatal(err)
	}
	return port, link, linked(t, link)
}

// linked is a driver that may use a link in a folder of the test, besides the ports in /dev.
func linked(t *testing.T, link string) *driver {
	t.Helper()
	d, err := newDriver(mapper.Networks{}, anySerialPort+","+link)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// open opens a device at the end of a serial line, until the test ends.
func open(t *testing.T, d *driver, namespace, port string, baudRate int) mapper.Conn {
	t.Helper()
	c, err := d.Open(t.Context(), namespace, mapper.Config{"serialPort": port, "baudRate": baudRate, "timeout": 10000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, c) })
	return c
}

func shut(t *testing.T, c mapper.Conn) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// read reads a holding register.
func read(t *testing.T, c mapper.Conn, register int) (string, error) {
	return c.Read(t.Context(), &mapper.Property{
		Type: "INT", Visitor: mapper.Config{"register": holding, "offset": register},
	})
}

// fails fails the test unless reading returns an error with each of the parts.
func fails(t *testing.T, c mapper.Conn, parts ...string) {
	t.Helper()
	_, err := read(t, c, 1)
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("Read = %v, want an error with %q", err, part)
		}
	}
}

// reads fails the test unless register 1 has a value.
func reads(t *testing.T, c mapper.Conn, want string) {
	t.Helper()
	if got, err := read(t, c, 1); err != nil || got != want {
		t.Fatalf("Read = %s, %v, want %s", got, err, want)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TestTwoNames: devices on one serial line that have different names for it use it in turns.
func TestTwoNames(t *testing.T) {
	for name, other := range map[string]struct {
		namespace string
		baudRate  int
	}{"one namespace": {"shop", 9600}, "two namespaces": {"other", 9600}, "other settings": {"other", 19200}} {
		t.Run(name, func(t *testing.T) {
			s := modbusserver.Start(t)
			for i := range modbusserver.Size {
				s.Set(i, uint16(i))
			}
			port, link, d := twoNames(t, s)
			var running sync.WaitGroup
			for i, c := range []mapper.Conn{
				open(t, d, "shop", port.name, 9600), open(t, d, other.namespace, link, other.baudRate),
			} {
				running.Go(func() {
					for n := range 50 {
						register := i*500 + n
						if got, err := read(t, c, register); err != nil || got != fmt.Sprint(register) {
							t.Errorf("device %d: register %d has %s, %v", i, register, got, err)
							return
						}
					}
				})
			}
			running.Wait()
			if n := port.overlaps.Load(); n > 0 {
				t.Errorf("%d requests came before the one before was answered", n)
			}
		})
	}
}

// TestTwoNamesOtherSettings: devices of a namespace cannot use one line with different settings, whichever names they
// have for it.
func TestTwoNamesOtherSettings(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(1, 7)
	port, link, d := twoNames(t, s)
	first := open(t, d, "shop", port.name, 9600)
	c, err := d.Open(t.Context(), "shop", mapper.Config{"serialPort": link, "baudRate": 19200})
	const refused = "with other settings"
	if err == nil || !strings.Contains(err.Error(), refused) || !strings.Contains(err.Error(), port.name) {
		t.Errorf("Open = %v, %v, want an error with the name of the port", c, err)
	}
	// The link appears when both are there.
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	second := open(t, d, "shop", link, 19200)
	fails(t, second, "no such file")
	if err := os.Symlink(port.name, link); err != nil {
		t.Fatal(err)
	}
	files := openFiles(t)
	for range 3 {
		fails(t, second, refused, port.name)
	}
	if now := openFiles(t); now != files {
		t.Errorf("%d files are open, want %d", now, files)
	}
	reads(t, first, "7")
	shut(t, first)
	reads(t, second, "7")
}

// TestReplug: a port that comes back under another name is another line. The old one is closed, and its settings are
// free.
func TestReplug(t *testing.T) {
	s, now := modbusserver.Start(t), modbusserver.Start(t)
	s.Set(1, 7)
	now.Set(1, 8)
	port, link, d := twoNames(t, s)
	a, b := open(t, d, "shop", link, 9600), open(t, d, "other", link, 9600)
	reads(t, b, "7")
	reads(t, a, "7")
	again := newSerialPort(t, now)
	if err := errors.Join(os.Symlink(again.name, link+".new"), os.Rename(link+".new", link)); err != nil {
		t.Fatal(err)
	}
	c := open(t, d, "shop", port.name, 19200)
	e := open(t, d, "third", port.name, 4800)
	for range 2 {
		reads(t, c, "7")
		port.hasSpeed(t, unix.B19200)
		reads(t, e, "7")
		port.hasSpeed(t, unix.B4800)
		reads(t, a, "8")
		reads(t, b, "8")
	}
	shut(t, e)
	shut(t, c)
	reads(t, open(t, linked(t, link), "shop", port.name, 9600), "7") // the first driver has closed it
}

// TestUnplugged: a line that hangs up and comes back is opened again.
func TestUnplugged(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(1, 7)
	port, link, d := twoNames(t, s)
	c := open(t, d, "shop", link, 9600)
	reads(t, c, "7")
	port.unplug()
	fails(t, c)
	again := newSerialPort(t, s)
	if err := errors.Join(os.Remove(link), os.Symlink(again.name, link)); err != nil {
		t.Fatal(err)
	}
	reads(t, c, "7")
}

// TestLineInUse: a line that another program uses is an error.
func TestLineInUse(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(1, 7)
	port, link, d := twoNames(t, s)
	const inUse = "another program uses it"
	for name, lock := range map[string]func() (unlock func() error, err error){
		"exclusive": func() (func() error, error) {
			fd := int(port.held.Fd())
			unlock := func() error { return unix.IoctlSetInt(fd, unix.TIOCNXCL, 0) }
			return unlock, unix.IoctlSetInt(fd, unix.TIOCEXCL, 0)
		},
		"flock": func() (func() error, error) {
			fd := int(port.held.Fd())
			return func() error { return unix.Flock(fd, unix.LOCK_UN) }, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		},
	} {
		unlock, err := lock()
		if err != nil {
			t.Fatal(name, err)
		}
		c := open(t, d, "shop", port.name, 9600)
		fails(t, c, inUse, port.name)
		if err := unlock(); err != nil {
			t.Fatal(name, err)
		}
		reads(t, c, "7")
		held := int(port.held.Fd())
		if excl, err := unix.IoctlGetInt(held, unix.TIOCGEXCL); err != nil || excl != 1 {
			t.Errorf("exclusive = %d, %v while the mapper uses the line, want 1", excl, err)
		}
		if err := unix.Flock(held, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("flock = %v while the mapper uses the line, want %v", err, unix.EWOULDBLOCK)
		}
		fails(t, open(t, linked(t, link), "shop", link, 19200), inUse, link)
		reads(t, c, "7")
		shut(t, c)
		if excl, err := unix.IoctlGetInt(held, unix.TIOCGEXCL); err != nil || excl != 0 {
			t.Errorf("exclusive = %d, %v after the mapper has left, want 0", excl, err)
		}
	}
}

// serialPort is a serial line with a device at its end.
type serialPort struct {
	name string
	line *os.File // the device's end
	held *os.File // or the line would hang up when the mapper closes it
	// overlaps counts the requests that came before the one before was answered.
	overlaps atomic.Int64
	running  sync.WaitGroup
}

// serialLine returns the name of a serial port with a device at its end.
func serialLine(t *testing.T, s *modbusserver.Server) string { return newSerialPort(t, s).name }

// newSerialPort makes a line with a device at its end: the frames of RTU, without their address and checksum, are
// requests of Modbus TCP.
func newSerialPort(t *testing.T, s *modbusserver.Server) *serialPort {
	t.Helper()
	line, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	control, err := line.SyscallConn() // Fd would make it blocking, and Close wait for reads
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var unlock int32
	var failed error
	if err := control.Control(func(fd uintptr) {
		number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.TIOCSPTLCK,
			uintptr(unsafe.Pointer(&unlock))); errno != 0 {
			failed = errors.Join(failed, errno)
		}
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	p := &serialPort{name: "/dev/pts/" + strconv.Itoa(number), line: line}
	if p.held, err = os.OpenFile(p.name, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	termios, err := unix.IoctlGetTermios(int(p.held.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	termios.Lflag, termios.Oflag, termios.Iflag = 0, 0, 0
	if err := unix.IoctlSetTermios(int(p.held.Fd()), unix.TCSETS, termios); err != nil {
		t.Fatal(err)
	}
	device, err := net.Dial("tcp", net.JoinHostPort(s.IP, strconv.Itoa(s.Port)))
	if err != nil {
		t.Fatal(err)
	}
	p.running.Go(func() { p.serve(device) })
	t.Cleanup(func() {
		_ = device.Close()
		p.unplug()
	})
	return p
}

// hasSpeed fails the test unless the port has a speed, such as unix.B9600.
func (p *serialPort) hasSpeed(t *testing.T, want uint32) {
	t.Helper()
	termios, err := unix.IoctlGetTermios(int(p.held.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if got := termios.Cflag & unix.CBAUD; got != want {
		t.Fatalf("speed = %#o, want %#o", got, want)
	}
}

// unplug removes the port, as that of a USB adapter.
func (p *serialPort) unplug() {
	_ = p.held.Close()
	_ = p.line.Close()
	p.running.Wait()
}

// serve answers requests of 8 bytes, those for one coil or register and for reading, until the line hangs up.
func (p *serialPort) serve(device io.ReadWriter) {
	request := make([]byte, 8)
	header := make([]byte, 6)
	for {
		if _, err := io.ReadFull(p.line, request); err != nil {
			return
		}
		if crc(request[:6]) != binary.LittleEndian.Uint16(request[6:]) {
			return
		}
		if _, err := device.Write(append([]byte{0, 1, 0, 0, 0, 6}, request[:6]...)); err != nil {
			return
		}
		if _, err := io.ReadFull(device, header); err != nil {
			return
		}
		answer := make([]byte, binary.BigEndian.Uint16(header[4:]))
		if _, err := io.ReadFull(device, answer); err != nil {
			return
		}
		if p.hasInput() {
			p.overlaps.Add(1)
		}
		if _, err := p.line.Write(binary.LittleEndian.AppendUint16(answer, crc(answer))); err != nil {
			return
		}
	}
}

// hasInput reports whether the mapper has sent more than was read.
func (p *serialPort) hasInput() bool {
	more := 0
	if control, err := p.line.SyscallConn(); err == nil {
		_ = control.Control(func(fd uintptr) {
			more, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		})
	}
	return more > 0
}

// crc is the checksum of Modbus RTU.
func crc(data []byte) uint16 {
	sum := uint16(0xffff)
	for _, b := range data {
		sum ^= uint16(b)
		for range 8 {
			odd := sum&1 != 0
			if sum >>= 1; odd {
				sum ^= 0xa001
			}
		}
	}
	return sum
}
